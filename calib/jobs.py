"""What a batch job runs: a verb of calib that starts ranks, with the options that the job sets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from calib.app import VERBS, built, starts_ranks
from calib.foundation.errors import InputError


def rank_words(
    verb: str,
    arguments: Sequence[str],
    launcher: str,
    ranks: int,
    *,
    command: str,
    device: str | None = None,
    tried: Sequence[str] | None = None,
) -> list[str]:
    """The words after `calib` that run a verb on `ranks` ranks under `launcher`.

    They are parsed here as the verb will parse them, so that a mistake shows before the job has waited
    in a queue. `device` is what layers run on where the words do not say; None leaves that to the
    verb. `command` is the verb that writes the job, for the example in the message; `tried` is what is
    parsed where `arguments` hold a place for a number. Raises InputError for a verb that starts no
    ranks, and for options set here.
    """
    group = built()
    if verb not in VERBS or not starts_ranks(group, verb):
        starting = ", ".join(name for name in VERBS if starts_ranks(group, name))
        raise InputError(
            f"{verb!r} is no verb that starts ranks; those are {starting} "
            f"(as in `calib {command} -- calibrate --quick`)"
        )
    context = group.commands[verb].make_context(verb, list(arguments if tried is None else tried))
    options = {option.name: option.opts[0] for option in group.commands[verb].params}
    for name in ("launcher", "ranks"):
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"{options[name]} is not given after --: the job runs {verb} with --launcher "
                f"{shlex.quote(launcher)}, on nodes x ranks-per-node = {ranks} ranks"
            )
    goes_on = context.params.get(
        "resume", False
    )  # by the ranks and device of the plan that is there
    words = [verb, *arguments, "--launcher", launcher]
    if "ranks" in options and not goes_on:
        words += ["--ranks", str(ranks)]
    if device is not None and context.params.get("device", "") is None and not goes_on:
        words += [options["device"], device]
    if any(not word.isprintable() for word in words):
        raise InputError("the words after -- hold a line break or another control character")
    return words
