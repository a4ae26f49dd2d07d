"""``llmsession cluster up``: run the hosts of a cluster, on this machine or on a Ray cluster."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from llmsession.errors import InvalidInput, need_package

from ..common.files import user_folder
from ..common.stores import STORE_VARIABLE
from ..common.terminal import say

if TYPE_CHECKING:
    from llmsession.cluster.keeper import HostCommand
    from llmsession.cluster.supervisor import SupervisedHost

__all__ = ["up"]

NO_STORE = (
    "a cluster keeps its sessions in PostgreSQL: name one with --store postgresql://..., or with"
    f" ${STORE_VARIABLE}. To try it: docker run -d -p 127.0.0.1:5432:5432 -e POSTGRES_PASSWORD=try"
    " postgres, then --store postgresql://postgres:try@127.0.0.1/postgres"
)

RAY_LISTEN = "tcp://0.0.0.0:7700"


def up(
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTION...]", help="Options of `llmsession serve` for each host, after --."
        ),
    ] = None,
    *,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="ADDRESS",
            help=f"postgresql://...; also read from ${STORE_VARIABLE}, or from --config.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name of the cluster. Default: default."),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Run N hosts on this machine, until Ctrl-C; without Ray."
        ),
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Run N hosts on a Ray cluster. Default: one for each core."
        ),
    ] = None,
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The Ray cluster; auto: that of this machine.")
    ] = "auto",
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where hosts listen: unix:FOLDER, or tcp://HOST:PORT for the first host of a"
            " machine and the ports above for the others; 0.0.0.0 is each node's own address on"
            " Ray. Default: a socket in --folder, or tcp://0.0.0.0:7700 on Ray.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the logs and sockets of the hosts."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The configuration of each host: a TOML file."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer from this recording instead of a model."),
    ] = None,
) -> None:
    """Run the hosts of a cluster: on this machine with --local, otherwise on a Ray cluster.

    A host that ends is started again, after a pause if it ends again and again; other hosts take
    its sessions at once. ``llmsession cluster scale N`` changes how many run.
    """
    from llmsession.cluster.keeper import HostCommand
    from llmsession.transport.hosting.config import load_server_config

    address = store or os.environ.get(STORE_VARIABLE) or None
    if config is not None:
        settings = load_server_config(config, {})
        address, cluster = address or settings.store, cluster or settings.cluster
    cluster = cluster or "default"
    if address is None or not address.startswith(("postgres:", "postgresql:")):
        raise InvalidInput(NO_STORE)
    arguments = list(options or ())
    for option, file in (("--config", config), ("--replay", replay)):
        if file is not None:
            arguments += [option, str(file.absolute())]
    place = folder.absolute() if folder is not None else _default_folder(cluster, address)
    if listen is None:
        listen = f"unix:{place}" if local is not None else RAY_LISTEN
    command = HostCommand(cluster, listen, tuple(arguments), {"LLMSESSION_SERVE_STORE": address})
    command.check()
    if local is not None:
        if hosts is not None:
            raise InvalidInput("--local and --hosts cannot be combined: --local N runs N hosts")
        anyio.run(_up_local, address, command, place, local)
    else:
        _up_on_ray(address, command, place, hosts, ray)


def _up_on_ray(
    store: str, command: HostCommand, folder: Path, count: int | None, address: str
) -> None:
    need_package("ray", "a cluster without --local", "llmsession[cluster]")
    from llmsession.cluster.ray_engine import Plan, start_on_ray

    anyio.run(_want, store, command.cluster, count)
    for host in start_on_ray(Plan(store, command, str(folder)), address):
        say(f"{host.name}  up  {host.address}  pid {host.pid} on {host.node}")
    say("They go on. llmsession cluster scale N changes how many run, and down ends them.")


async def _want(store: str, cluster: str, count: int | None) -> None:
    from llmsession.cluster.directory import Directory

    async with Directory(store, cluster) as directory:
        if count is not None or directory.wanted == 0:
            await directory.set_wanted(count)


def _default_folder(cluster: str, store: str) -> Path:
    """The user's folder for *cluster* in *store*."""
    digest = hashlib.sha256(store.encode()).hexdigest()[:8]
    name = "".join(c if c.isalnum() else "_" for c in cluster)
    return user_folder("XDG_STATE_HOME", ".local/state") / f"cluster-{name}-{digest}"


async def _up_local(store: str, command: HostCommand, folder: Path, count: int) -> None:
    from llmsession.cluster.directory import Directory
    from llmsession.cluster.local import run_local

    def ready() -> None:
        name = "" if command.cluster == "default" else f" --cluster {command.cluster}"
        hosts = "1 host" if count == 1 else f"{count} hosts"
        say(f"ready: cluster {command.cluster!r} has {hosts}; their logs are in {folder}")
        say(f"In another terminal, with ${STORE_VARIABLE} set to the same store:")
        for what in ("status", f"scale {count + 1}", "drain HOST", "move SESSION HOST"):
            say(f"  llmsession cluster {what}{name}")
        say("Ctrl-C drains the hosts and ends them.", flush=True)

    def ending() -> None:
        say("the hosts end; Ctrl-C again kills them", flush=True)

    async with Directory(store, command.cluster) as directory:
        await run_local(
            directory,
            command,
            folder,
            count,
            node=platform.node() or "host",
            ready=ready,
            ending=ending,
            on_change=_print_change,
        )


def _print_change(host: SupervisedHost) -> None:
    if host.state == "up":
        say(f"{host.name}  up  {host.address}  pid {host.pid}", flush=True)
    elif host.state == "waiting":
        say(f"{host.name}  {host.why}; it is started again", flush=True)
    elif host.state == "stopping" and host.pid == 0:
        say(f"{host.name}  ended", flush=True)
