#!/usr/bin/env python3
"""Writes a manual page, in Markdown for go-md2man, from what a program says of itself with --help."""
import argparse
import re
import subprocess
import sys


def help_of(*command):
    """What the program prints, without the lines about itself that the page has elsewhere."""
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout.strip("\n")


def commands_in(text):
    """Name and summary of each subcommand, in order."""
    found = re.search(r"^Subcommands:\n((?:  .*\n?)+)", text, re.MULTILINE)
    return re.findall(r"^  ([a-z][a-z0-9-]*) +(.*)$", found.group(1), re.MULTILINE) if found else []


def literal(text):
    return "```\n" + text + "\n```\n"


def page(program, name, version):
    whole = help_of(program)
    body, _, examples = whole.partition("\nExamples:\n")
    summary = body.splitlines()[0]
    yield f'{name} 1 "kvtier {version}" "User commands"\n{"=" * 40}\n'
    yield f"# NAME\n\n{name} - {summary[0].lower() + summary[1:].rstrip('.')}\n"
    yield "# SYNOPSIS\n\n" + literal("\n".join(body.splitlines()[1:]).strip("\n")).replace(str(program), name)
    for command, what in commands_in(body):
        own = help_of(program, command).partition("\nExamples:\n")[0]
        yield f"# {name} {command}\n\n{what}\n\n" + literal("\n".join(own.splitlines()[1:]).strip("\n"))
    if examples:
        yield "# EXAMPLES AND EXIT STATUS\n\n" + literal(examples.rstrip("\n"))
    yield "# SEE ALSO\n\n**kvtierd**(8), **kvtierctl**(1), **kvtier-engine**(1), **kvtier-warm**(1), **kvtierd.toml**(5)\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program")
    arguments.add_argument("--name", required=True)
    arguments.add_argument("--version", required=True)
    arguments = arguments.parse_args()
    sys.stdout.write("\n".join(page(arguments.program, arguments.name, arguments.version)))


if __name__ == "__main__":
    main()
