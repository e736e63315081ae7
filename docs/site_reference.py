"""The reference of the command line and of files, made from what parses and validates them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import click
from site_api import escaped

Schema = Mapping[str, Any]
HEADS = {"algorithm": "name", "participation": "scheme"}  # by which a table says what it is; else its kind
HUGE = 1e7  # a limit that nobody meets
TABLES = {
    "problem": "What agents hold",
    "algorithm": "Methods",
    "participation": "Who takes part",
    "schedule": "Who works when",
    "network": "Networks",
    "regions": "Hubs of hubs",
    "channel": "Channels",
    "gather": "Gathers",
    "attack": "Attacks",
}


# The command line


def commands_page() -> str:
    """Every command with its arguments and options."""
    from fedpoint.cli import main

    parts = ["# Command line", "`fedpoint COMMAND --help` says the same in the terminal."]
    for path, command in _commands(main, ("fedpoint",)):
        parts.append(_command(path, command))
    return "\n\n".join(parts) + "\n"


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if len(path) > 1:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(path)
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [
        f"{'#' * min(len(path), 3)} `{name}`",
        f"```text\n{usage}\n```",
        escaped(_paragraphs(inspect.cleandoc(command.help or ""))),
    ]
    records = [found for p in command.get_params(context) if (found := p.get_help_record(context))]
    parts.append("\n".join(f"- `{flags}`: {escaped(said)}" for flags, said in records if said))
    return "\n\n".join(part for part in parts if part)


def _paragraphs(text: str) -> str:
    """click's mark for text that keeps its lines, as Markdown's."""

    def one(part: str) -> str:
        return f"```text\n{part.removeprefix(chr(8)).strip(chr(10))}\n```" if part.startswith("\b") else part

    return "\n\n".join(map(one, text.replace("\r", "").split("\n\n")))


# Files


def files_page() -> str:
    """Every key of a file, from the schema that editors check files by."""
    import fedpoint as fp
    from fedpoint.config.plans import PlanTable

    schema = fp.schema()
    parts = ["# Files", "An experiment as TOML; [how to write one](../experiment.md). `fp.schema()` is this page as"]
    parts[-1] += (
        " a JSON schema, by which editors complete and check files. Keys that a kind does not have are refused."
    )
    parts += ["## Keys of a file", _keys(schema, schema["$defs"])]
    for key, title in TABLES.items():
        parts.append(f"## {title}: `[{key}]`")
        parts += [_table(key, found, schema["$defs"]) for found in _alternatives(schema, key)]
    plan = PlanTable.model_json_schema()
    parts += ["## Plans: `[plan]`", _keys(plan, plan.get("$defs", {}))]
    return "\n\n".join(parts) + "\n"


def _alternatives(schema: Schema, key: str) -> list[Schema]:
    """The tables that may stand under a key, each once."""
    found = [one["$ref"].rsplit("/", 1)[1] for one in schema["properties"][key]["anyOf"] if "$ref" in one]
    return [schema["$defs"][name] for name in dict.fromkeys(found)]


def _table(key: str, table: Schema, definitions: Schema) -> str:
    """One table, under what a file calls it by."""
    from fedpoint.algorithms.catalogue import makers
    from fedpoint.config.records import snake

    title = table["title"].removesuffix("Table")
    kinds = table["properties"].get("kind", {})
    words = kinds.get("enum") or ([kinds["const"]] if "const" in kinds else [])
    methods = {make.__name__: word for word, make in makers().items()}
    if "kind" not in table["properties"] and key in ("network", "regions"):
        heading = ", ".join(f"`{name} = ...`" for name in table.get("required", ()))
    else:
        head = HEADS.get(key, "kind")
        heading = ", ".join(f'`{head} = "{word}"`' for word in words or [methods.get(title) or snake(title)])
    return f"### {heading}\n\n{escaped(table.get('description', ''))}\n\n{_keys(table, definitions)}"


def _keys(table: Schema, definitions: Schema) -> str:
    required = table.get("required", ())
    lines = []
    for name, key in table.get("properties", {}).items():
        if (
            name in ("kind", "name", "scheme", "total") and table["title"] != "Content"
        ):  # what the table is called by, and what runs write
            continue
        default = "" if key.get("default") is None else f", `{json.dumps(key['default'])}` if left out"
        need = ", required" if name in required else default
        lines.append(f"- **`{name}`** ({_kind(key, definitions)}{need}): {escaped(key.get('description', ''))}")
    return "\n".join(lines)


def _kind(key: Schema, definitions: Schema) -> str:
    """The types that a key may have, in a word or two."""
    if "enum" in key:
        return " or ".join(f'`"{word}"`' for word in key["enum"])
    if "const" in key:
        return f'`"{key["const"]}"`'
    if "anyOf" in key:
        some = dict.fromkeys(_kind(one, definitions) for one in key["anyOf"] if one.get("type") != "null")
        return " or ".join(some)
    if "$ref" in key:
        return "table"
    kinds = key.get("type", "value")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return " or ".join({"object": "table"}.get(kind, kind) for kind in kinds) + _limits(key)


def _limits(key: Schema) -> str:
    said = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return "".join(f", {word} {key[limit]:g}" for limit, word in said.items() if abs(key.get(limit, HUGE)) < HUGE)


__all__ = ["commands_page", "files_page"]
