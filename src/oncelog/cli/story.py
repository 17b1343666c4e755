"""`oncelog story`: thirty stories of lost, duplicated and reordered records."""

from __future__ import annotations

import click

from oncelog.cli.common import BROKERS_OPTIONS, open_admin, quiet
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note

ALL = "all"


@click.command(
    epilog=examples("oncelog story", "oncelog story 1", "oncelog story all", "oncelog story 16 -b kafka:9092")
)
@click.argument("numbers", nargs=-1, metavar="[NUMBER]... | all")
@click.option(
    *BROKERS_OPTIONS,
    "brokers",
    metavar="HOST:PORT,...",
    default="",
    help="Brokers to run on, of oncelog or Apache Kafka. Default: each story starts its own. Stories 2, 5, 6, 7 and 24 "
    "always start their own, because they kill brokers. Stories 26 and 27 need none.",
)
def story(numbers: tuple[str, ...], brokers: str) -> None:
    """Run programs that show how records are lost, duplicated or reordered, and what prevents it.

    The stories are about producers, groups, transactions and brokers. Each story has two runs: one without its cure,
    with a wrong result, then one with it. A run prints the faults, and what is in the log. Without a NUMBER, the
    command lists the stories. The exit status is 1 if a run has another result than expected.
    """
    from oncelog.stories.catalog import STORIES, show

    if not numbers:
        for number, each in STORIES.items():
            click.echo(f"{number:>2}  {each.title}. Cure: {each.cure}")
        return
    chosen = list(STORIES) if ALL in numbers else [_number(text) for text in numbers]
    if brokers and not all(STORIES[number].instead for number in chosen):
        note(f"connecting to {brokers}")
        with open_admin(brokers):  # raises an error soon, while a story would wait for the brokers
            pass
    failed = []
    for place, number in enumerate(chosen):
        if place:
            click.echo()
        if brokers and STORIES[number].instead:
            note(f"story {number} does not run on {brokers}: {STORIES[number].instead}")
        with quiet():
            shown = show(number, click.echo, brokers)
        if not shown.as_told:
            failed.append(number)
    if len(chosen) > 1:
        click.echo(f"\n{len(chosen) - len(failed)} of {len(chosen)} stories have ended as told")
    if failed:
        raise click.ClickException(f"not as told: {', '.join(map(str, failed))}")


def _number(text: str) -> int:
    from oncelog.stories.catalog import STORIES

    if not text.isdecimal() or int(text) not in STORIES:
        raise click.BadParameter(f"{text!r} is not the number of a story; `oncelog story` lists them")
    return int(text)
