"""The contract of a design of comparisons: its options, and what it makes of a comparison without a run."""

from __future__ import annotations

from zoo.cli import help
from zoo.cli.find_command import find_command, parse
from zoo.compare.command import read_comparison
from zoo.compare.design import SEVERAL, Design
from zoo.compare.options import COMPARE_OPTIONS, HIDDEN_SETTINGS, REFUSED
from zoo.conformance.check import Broken, Inapplicable, require
from zoo.conformance.contracts.command import description_is_light, sample_value
from zoo.conformance.subject import Independent
from zoo.conformance.token_checks import documentation
from zoo.errors import PluginError, UsageError


def an_option_has_its_name(subject: Independent) -> None:
    """One of its options has its name, by which `zoo compare` asks for it, and zoo compare itself has none of them."""
    design: Design = subject.build()
    problem = design.problem()
    require(not problem, f"{problem}.")
    require(bool(design.options) or design.name == SEVERAL, "it has no option, and nothing asks for it.")
    own_strings = {string for option in (*COMPARE_OPTIONS, *HIDDEN_SETTINGS, *REFUSED) for string in option.strings}
    for option in design.options:
        require(not {*option.strings} & own_strings, f"--{option.name} is an option of zoo compare already.")


def its_options_are_read(subject: Independent) -> None:
    """Each of its options is in the help of zoo compare, and is read where it stands on a command line."""
    design, command = subject.build(), find_command("compare")
    if design.name not in [option.name for option in command.options]:
        raise Inapplicable("its package is not installed")
    text = help.command_help(command)
    for option in design.options:
        require(not option.heading or f"--{option.name}" in text, f"the help lacks --{option.name}.")
        value = "" if option.type is bool else f"={sample_value(option)}"
        try:
            values = parse(command, ["lm-tiny", f"--{option.name}{value}"]).values
        except UsageError as error:
            require(False, f"--{option.name} cannot be given: {error}")
        require(option.destination in values, f"--{option.name} is given, and not read.")


def it_is_chosen(subject: Independent) -> None:
    """A command line with its option, or with so many recipes, makes a comparison of this design, or says why not."""
    design: Design = subject.build()
    if design.name not in [option.name for option in find_command("compare").options]:
        raise Inapplicable("no option of zoo compare asks for it")
    option = next(option for option in design.options if option.name == design.name)
    value = "" if option.type is bool else f"={sample_value(option)}"
    vary = () if design.varies else ("--vary", "model.norm=layernorm,rmsnorm")
    words = (*["lm-tiny", "vit-tiny"][: design.recipes], *vary, f"--{option.name}{value}")
    try:
        comparison = read_comparison(parse(find_command("compare"), words))
    except UsageError:
        return
    except PluginError as error:
        raise Broken(str(error)) from error
    design_made = comparison and comparison.design
    require(type(design_made) is subject.part, f"zoo compare {' '.join(words)} is a comparison of {design_made}.")
    require(bool(comparison and comparison.title), "the folder of its comparison has no name: see title.")


PROMISES = [documentation, description_is_light, an_option_has_its_name, its_options_are_read, it_is_chosen]
