"""The command of the lessons, as data. Needs no torch."""

from __future__ import annotations

from zoo.command_line import LEARN, Argument, Command, Option, json_option


class Lesson(Command):
    """A course on Transformers that computes what it says; without NAME, its lessons."""

    group = LEARN
    runs = "zoo_learn.lesson_command:run"
    arguments = (Argument("NAME", "a lesson", False, completes="zoo_learn.source:lesson_names"),)
    options = (
        Option("lang", "en or zh", choices=("en", "zh"), default="en"),
        Option("set", "change an input of the lesson, any number of times", metavar="NAME=VALUE", repeats=True),
        Option("exercise", "this exercise alone", int, metavar="N", above=0),
        Option("answer", "check an answer; a wrong one gets a hint and exit code 1", metavar="TEXT"),
        Option("code", "show the code of each step too", bool),
        json_option(),
    )
    examples = (
        "zoo lesson cat --lang zh",
        "zoo lesson cat --set cat=1,2,3,4",
        "zoo lesson cat --exercise 1 --answer 3.58",
    )
    description = (
        "Printed numbers of course notes stand beside the computed ones, with a reason where they differ.\n"
        "≈ marks what is measured or trained, ~ a time."
    )
    only_prints = True
    needs_folder = False
