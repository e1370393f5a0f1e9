"""Warm sandboxes for AI agents: the Python client of Shoal.

async with Pool() as pool:
    async with pool.checkout("default") as box:
        print((await box.run("print(1)")).output)
"""

from ._box import Box
from ._errors import (
    CheckoutTimeout,
    ConnectionFailed,
    HarnessBusy,
    HarnessEnded,
    InvalidArgument,
    LaunchError,
    LeaseLost,
    NoHarness,
    NotAllowed,
    OutOfMemory,
    PathNotFound,
    PoolExhausted,
    ProgramFailed,
    ReadyTimeout,
    SandboxCrashed,
    ShoalError,
    Timeout,
    UnknownTemplate,
)
from ._files import Files
from ._pipes import StdinPipe, StdoutPipe
from ._pool import Checkout, Pool
from ._processes import Processes
from ._secrets import Secrets
from ._sync_box import SyncBox
from ._sync_files import SyncFiles
from ._sync_pipes import SyncStdinPipe, SyncStdoutPipe
from ._sync_pool import SyncCheckout, SyncPool
from ._sync_processes import SyncProcesses
from ._sync_secrets import SyncSecrets
from ._types import FileEntry, Lease, Log, Process, Result, Secret

__all__ = [
    "Box",
    "Checkout",
    "CheckoutTimeout",
    "ConnectionFailed",
    "FileEntry",
    "Files",
    "HarnessBusy",
    "HarnessEnded",
    "InvalidArgument",
    "LaunchError",
    "Lease",
    "LeaseLost",
    "Log",
    "NoHarness",
    "NotAllowed",
    "OutOfMemory",
    "PathNotFound",
    "Pool",
    "PoolExhausted",
    "Process",
    "Processes",
    "ProgramFailed",
    "ReadyTimeout",
    "Result",
    "SandboxCrashed",
    "Secret",
    "Secrets",
    "ShoalError",
    "StdinPipe",
    "StdoutPipe",
    "SyncBox",
    "SyncCheckout",
    "SyncFiles",
    "SyncPool",
    "SyncProcesses",
    "SyncSecrets",
    "SyncStdinPipe",
    "SyncStdoutPipe",
    "Timeout",
    "UnknownTemplate",
]
