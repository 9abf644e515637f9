"""The commands. Everything they need is imported inside them, so that `kimi-k3 version` and `--help` answer at once.

Exit codes: 0 done, 2 wrong usage or unreadable input, 3 a resource is refused. Results go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kimi_k3_operator.errors import KimiK3Error

if TYPE_CHECKING:
    from kimi_k3_operator.cli.judged import Accepted
    from kimi_k3_operator.plan.engine import Planner

UNREADABLE = 2
REFUSED = 3

app = typer.Typer(
    name="kimi-k3",
    help="Shows what the Kimi K3 operator makes of a KimiK3Deployment, without a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
profiles_app = typer.Typer(help="The hardware profiles.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(profiles_app, name="profiles")


class Form(StrEnum):
    """Form of an output that people read by default."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"


class ManifestForm(StrEnum):
    """Form of manifests."""

    YAML = "yaml"
    JSON = "json"


File = Annotated[
    str,
    typer.Option("-f", "--filename", metavar="FILE", help="KimiK3Deployments as YAML or JSON; - is standard input."),
]
Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Namespace of resources that name none (else default).")
]
Profiles = Annotated[
    list[Path] | None,
    typer.Option("--profiles", metavar="DIR", help="Folder with more profiles, NAME/VERSION.yaml. May be repeated."),
]
Output = Annotated[Form, typer.Option("-o", "--output", help="Form of the output.")]
SNAPSHOT = "Nodes, pods, LeaderWorkerSets and ComputeDomains of a cluster, as kubectl get -o yaml prints them."


@app.command()
def render(
    file: File,
    namespace: Namespace = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="SNAPSHOT", help=SNAPSHOT)] = None,
    profiles: Profiles = None,
    output: Annotated[ManifestForm, typer.Option("-o", "--output", help="Form of the output.")] = ManifestForm.YAML,
) -> None:
    """Print the manifests that the operator makes."""
    with _failures():
        from kimi_k3_operator.cli.cluster import read_cluster
        from kimi_k3_operator.cli.render import OPEN, rendered
        from kimi_k3_operator.cli.text import json_document, yaml_stream

        planner, accepted, refused = _judged(file, namespace, profiles, cluster)
        if refused:
            raise typer.Exit(REFUSED)
        world = read_cluster(cluster) if cluster is not None else OPEN
        found = []
        for resource in accepted:
            manifests, notes, world = rendered(planner, resource, world)
            found += manifests
            _say(*notes)
        if output is ManifestForm.JSON:
            _print(json_document({"apiVersion": "v1", "kind": "List", "items": found}))
        else:
            _print(yaml_stream(found))


@app.command()
def plan(
    file: File,
    cluster: Annotated[str, typer.Option("--cluster", metavar="SNAPSHOT", help=SNAPSHOT)],
    namespace: Namespace = None,
    profiles: Profiles = None,
    output: Output = Form.TABLE,
) -> None:
    """Show where each replica would go in a cluster, and what is left there."""
    with _failures():
        from kimi_k3_operator.cli.cluster import read_cluster
        from kimi_k3_operator.cli.placements import placements
        from kimi_k3_operator.cli.text import table

        planner, accepted, refused = _judged(file, namespace, profiles, cluster)
        found = placements(planner, accepted, read_cluster(cluster))
        if output is not Form.TABLE:
            _print_data(found.wire(), output)
        elif accepted:
            _print(table(("REPLICA", "PROFILE", "HARDWARE", "PLACE", "REASON"), found.rows()))
            _print("\n")
            _print(table(("HARDWARE", "NVLINK DOMAIN", "NODES", "FREE", "LEFT"), found.capacity_rows()))
        if refused:
            raise typer.Exit(REFUSED)


@app.command()
def explain(
    file: File,
    namespace: Namespace = None,
    profiles: Profiles = None,
    output: Output = Form.TABLE,
) -> None:
    """Show the command line of each pool and where every flag and variable comes from."""
    with _failures():
        from kimi_k3_operator.cli.explain import explained, explanation

        _, accepted, refused = _judged(file, namespace, profiles)
        if output is not Form.TABLE:
            named = [
                {"deployment": resource.label, "pools": [pool.wire() for pool in explained(resource)]}
                for resource in accepted
            ]
            _print_data(named, output)
        else:
            _print("\n".join(explanation(resource) for resource in accepted))
        if refused:
            raise typer.Exit(REFUSED)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinitions."""
    from kimi_k3_operator.api.crd import crds
    from kimi_k3_operator.cli.text import yaml_stream

    _print(yaml_stream(crds()))


@app.command()
def version() -> None:
    """Print the version."""
    from kimi_k3_operator import __version__

    _print(f"kimi-k3 {__version__}\n")


@profiles_app.command("list")
def list_profiles(profiles: Profiles = None, output: Output = Form.TABLE) -> None:
    """List the profiles and their versions."""
    with _failures():
        from kimi_k3_operator.cli.profiles import every_profile, summaries
        from kimi_k3_operator.cli.text import table
        from kimi_k3_operator.profiles.catalog import Catalog

        found = summaries(every_profile(Catalog.load(*(profiles or ()))))
        if output is not Form.TABLE:
            _print_data(found, output)
        else:
            headings = ("NAME", "VERSION", "CHANNEL", "ENGINE", "HARDWARE")
            _print(table(headings, [tuple(summary.values()) for summary in found]))


@profiles_app.command("show")
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME[/VERSION]", help="Without a version: the newest stable one.")],
    profiles: Profiles = None,
    output: Output = Form.TABLE,
) -> None:
    """Show the values of a profile, each with its source."""
    with _failures():
        from kimi_k3_operator.cli.profiles import document, named_profile, sourced
        from kimi_k3_operator.profiles.catalog import Catalog

        profile = named_profile(Catalog.load(*(profiles or ())), name)
        if output is not Form.TABLE:
            _print_data(document(profile), output)
        else:
            _print(sourced(profile))


def _judged(
    file: str, namespace: str | None, profiles: list[Path] | None, cluster: str | None = None
) -> tuple[Planner, list[Accepted], bool]:
    """(the planner, what would be acted upon, whether anything is refused); refusals and notes are said on the way."""
    from kimi_k3_operator.cli.documents import InputError, read_deployments
    from kimi_k3_operator.cli.judged import Accepted, judge, planner

    if file == "-" and cluster == "-":
        raise InputError("-f and --cluster cannot both be standard input")
    bodies, notes = read_deployments(file, namespace)
    _say(*notes)
    known = planner(profiles or ())
    accepted, refused = [], False
    for body in bodies:
        result = judge(known, body)
        if isinstance(result, Accepted):
            accepted.append(result)
            _say(*result.notes)
        else:
            refused = True
            prefix = f"{result.label}: " if len(bodies) > 1 else ""
            _say(*(line.replace(": ", f": {prefix}", 1) for line in result.lines))
    return known, accepted, refused


@contextmanager
def _failures() -> Iterator[None]:
    """What cannot be read ends the command with one sentence a line, never with a traceback."""
    try:
        yield
    except KimiK3Error as error:
        _say(*(f"error: {line}" for line in str(error).splitlines()))
        raise typer.Exit(UNREADABLE) from error


def _print(text: str) -> None:
    sys.stdout.write(text)


def _print_data(data: object, output: Form) -> None:
    from kimi_k3_operator.cli.text import json_document, yaml_document

    _print(json_document(data) if output is Form.JSON else yaml_document(data))


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
