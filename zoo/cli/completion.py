"""`zoo completion`: scripts for bash, zsh and fish, made from the table of commands. Needs no torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from zoo import recipe_files, registry
from zoo.cli.find_command import all_commands, command_names
from zoo.command_line import Argument, Command, Option, ParsedOptions, call_by_name
from zoo.errors import UsageError


def run(options: ParsedOptions) -> int:
    """`zoo completion SHELL`."""
    shell = options.words[0]
    if shell not in SCRIPTS:
        raise UsageError(f"no completion for {shell!r}: SHELL is {', '.join(SCRIPTS)}. See: zoo completion --help")
    print(SCRIPTS[shell](), end="")
    return 0


def option_strings(command: Command) -> list[str]:
    """The options that are offered: the documented spelling of each, and its short one."""
    offered = [option for option in command.all_options if option.heading or option.key]
    return [string for option in offered for string in (f"--{option.name}", option.short) if string]


def option_values(option: Option) -> list[str] | None:
    """The values that are offered after an option; none where files are, None for a flag. Names ignore case."""
    if option.type is bool:
        return None
    return [part.name.lower() for part in registry.parts(option.kind)] if option.kind else list(option.choices)


def argument_words(argument: Argument) -> list[str]:
    """The words that are offered for an argument, beside files."""
    recipes = [recipe.name for recipe in recipe_files.recipes()]
    words = {
        "recipe": recipes,
        "comparison": [*recipes, *(comparison.name for comparison in recipe_files.comparisons())],
        "kind": list(registry.KINDS),
        "part": [part.name.lower() for kind in registry.KINDS for part in registry.parts(kind)],
        "command": command_names(),
        "shell": list(SCRIPTS),
    }
    if ":" not in argument.completes:
        return words.get(argument.completes, [])
    try:
        return [str(word) for word in call_by_name(argument.completes)]
    except Exception:
        return []  # a package whose words cannot be read takes no other command's away


def command_words(command: Command) -> list[str]:
    """The words that are offered for all arguments of a command; a recipe too where a kind may be one."""
    words = [word for argument in command.arguments for word in argument_words(argument)]
    if command.name == "show":
        words += registry.KINDS
    if command.name == "check":
        words += [recipe.name for recipe in recipe_files.recipes()]
    return list(dict.fromkeys(words))


def _value_cases() -> Iterator[tuple[str, Option, list[str]]]:
    """For every option that takes a value: patterns of ``command:option``, the option, and the values."""
    for command in all_commands().values():
        for option in command.all_options:
            values = option_values(option)
            if values is not None and (option.heading or option.key):
                strings = [f"--{option.name}", *([option.short] if option.short else [])]
                yield "|".join(f"{command.name}:{string}" for string in strings), option, values


def _quoted(words: list[str]) -> str:
    return shlex.quote(" ".join(words))


def bash() -> str:
    """A function for bash's `complete`; where it offers nothing, bash offers files."""
    lines = [
        "# completion of zoo for bash: source <(zoo completion bash)",
        "_zoo() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"',
        "    local offered",
        "    COMPREPLY=()",
        '    if [ "$word" = "=" ]; then word=""  # bash splits --option=value at the sign',
        '    elif [ "$previous" = "=" ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi',
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        COMPREPLY=($(compgen -W {_quoted([*command_names(), "--help", "--version"])} -- "$word")); return',
        "    fi",
        '    case "$command:$previous" in',
    ]
    for pattern, _, values in _value_cases():
        lines.append(f'        {pattern}) COMPREPLY=($(compgen -W {_quoted(values)} -- "$word")); return ;;')
    lines += ["    esac", '    case "$command" in']
    for command in all_commands().values():
        strings, words = option_strings(command), command_words(command)
        lines.append(f'        {command.name}) case "$word" in')
        lines.append(f"            -*) offered={_quoted(strings)} ;; *) offered={_quoted(words)} ;; esac ;;")
    lines += ["    esac", '    COMPREPLY=($(compgen -W "$offered" -- "$word"))', "}"]
    return "\n".join([*lines, "complete -o default -F _zoo zoo", ""])


def zsh() -> str:
    """A function for zsh's `compdef`, which shows what each command and option is for."""
    described = [f"{name}:{_zsh(command.summary)}" for name, command in all_commands().items()]
    lines = [
        "#compdef zoo",
        "# completion of zoo for zsh: source <(zoo completion zsh), after compinit",
        "_zoo() {",
        '    local previous="${words[CURRENT-1]}" command="${words[2]}"',
        "    local -a offered",
        "    if (( CURRENT == 2 )); then",
        f"        offered=({' '.join(map(shlex.quote, described))})",
        "        _describe command offered; return",
        "    fi",
        "    if [[ ${words[CURRENT]} == --*=* ]]; then previous=${words[CURRENT]%%=*}; compset -P '*='; fi",
        '    case "$command:$previous" in',
    ]
    for pattern, _, values in _value_cases():
        body = f"compadd -- {' '.join(map(shlex.quote, values))}" if values else "_files"
        lines.append(f"        {pattern}) {body}; return ;;")
    lines += ["    esac", '    case "$command" in']
    for command in all_commands().values():
        options = {option.name: option.help or option.kind for option in command.all_options}
        strings = [f"{flag}:{_zsh(options.get(flag[2:], 'short form'))}" for flag in option_strings(command)]
        lines.append(f"        {command.name}) if [[ ${{words[CURRENT]}} == -* ]]; then")
        lines.append(f"            offered=({' '.join(map(shlex.quote, strings))}); _describe option offered")
        lines.append(f"        else compadd -- {' '.join(map(shlex.quote, command_words(command)))}; _files; fi ;;")
    return "\n".join([*lines, "    esac", "}", "compdef _zoo zoo", ""])


def fish() -> str:
    """A list of `complete` lines for fish."""
    lines = [
        "# completion of zoo for fish: zoo completion fish > ~/.config/fish/completions/zoo.fish",
        "complete -c zoo -e",
    ]
    for command in all_commands().values():
        about = _fish(command.summary)
        lines.append(f"complete -c zoo -n __fish_use_subcommand -f -a {command.name} -d {about}")
        inside = f"-n '__fish_seen_subcommand_from {command.name}'"
        if words := command_words(command):
            lines.append(f"complete -c zoo {inside} -a {_fish(' '.join(words))}")
        for option in command.all_options:
            if not (option.heading or option.key):
                continue
            values = option_values(option)
            short = f" -s {option.short[1:]}" if option.short else ""
            offered = "" if values is None else f" -x -a {_fish(' '.join(values))}" if values else " -r"
            lines.append(f"complete -c zoo {inside} -l {option.name}{short}{offered} -d {_fish(option.help)}")
    return "\n".join([*lines, ""])


def _zsh(text: str) -> str:
    """A description without what zsh's `_describe` takes for a separator."""
    return text.replace(":", " -").replace("`", "")


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
