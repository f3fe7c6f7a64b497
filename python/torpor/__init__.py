"""The Python client of Torpor: sandboxes for AI agents, ephemeral by default, stateful on purpose.

    from torpor import Sandbox

    with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sbx:
        print(sbx.exec("echo hello").stdout)
"""

from ._request import UNSET, Unset
from ._upload_body import UploadContent
from ._version import VERSION as __version__
from .accounts import Account, Accounts, TenantUsage
from .usage import Budget, Usage, UsageReport
from .advice import Advice, AdviceStep, TakenAdvice
from .api_keys import ApiKey, ApiKeys
from .background_command import BackgroundCommand
from .client import Torpor
from .code_contexts import CodeContext, CodeContexts
from .code_execution import CodeError, CodeExecution, CodeResult
from .errors import (
    AuthenticationError,
    CapacityError,
    CommandError,
    ConfigurationError,
    ConflictError,
    ConnectionError,
    EventsExpiredError,
    InvalidRequestError,
    NoSpaceError,
    NotFoundError,
    PermissionError,
    QuotaExceededError,
    RateLimitError,
    RequestIssue,
    SandboxEndedError,
    TimeoutError,
    TorporError,
    UnavailableError,
)
from .events import EventStream, SandboxEvent, verify_webhook
from .exec_result import Command, ExecResult
from .exec_stream import ExecEnded, ExecEvent, ExecOutput, ExecStarted, ExecStream
from .file_entry import FileEntry
from .file_watcher import FileChange, FileWatcher
from .filesystem import SandboxFilesystem
from .exploration import Exploration
from .fork_result import ForkResult
from .ledger import Ledger, LedgerEntry
from .paged_list import Page, PagedList
from .port_request import PortRequest
from .preview_urls import PreviewUrl
from .sandbox import Sandbox
from .sandbox_info import AttestedStep, Attestation, HibernationImage, SandboxInfo
from .sandbox_process import SandboxProcess
from .sandbox_sample import SandboxSample
from .snapshots import Snapshot, Snapshots
from .state_inventory import Forecast, Lifecycle, StateInventory, Survival
from .templates import BuildProgress, Template, TemplateBuild, Templates
from .webhooks import Webhook, Webhooks

__all__ = [
    "Account",
    "Accounts",
    "Advice",
    "AdviceStep",
    "ApiKey",
    "ApiKeys",
    "Attestation",
    "AttestedStep",
    "AuthenticationError",
    "BackgroundCommand",
    "Budget",
    "BuildProgress",
    "CapacityError",
    "CodeContext",
    "CodeContexts",
    "CodeError",
    "CodeExecution",
    "CodeResult",
    "Command",
    "CommandError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionError",
    "EventStream",
    "EventsExpiredError",
    "ExecEnded",
    "ExecEvent",
    "ExecOutput",
    "ExecResult",
    "ExecStarted",
    "ExecStream",
    "Exploration",
    "FileChange",
    "FileEntry",
    "FileWatcher",
    "Forecast",
    "ForkResult",
    "HibernationImage",
    "InvalidRequestError",
    "Ledger",
    "LedgerEntry",
    "Lifecycle",
    "NoSpaceError",
    "NotFoundError",
    "Page",
    "PagedList",
    "PermissionError",
    "PortRequest",
    "PreviewUrl",
    "QuotaExceededError",
    "RateLimitError",
    "RequestIssue",
    "Sandbox",
    "SandboxEndedError",
    "SandboxEvent",
    "SandboxFilesystem",
    "SandboxInfo",
    "SandboxProcess",
    "SandboxSample",
    "Snapshot",
    "Snapshots",
    "StateInventory",
    "Survival",
    "TakenAdvice",
    "Template",
    "TemplateBuild",
    "Templates",
    "TenantUsage",
    "TimeoutError",
    "Torpor",
    "TorporError",
    "UNSET",
    "UnavailableError",
    "Unset",
    "UploadContent",
    "Usage",
    "UsageReport",
    "Webhook",
    "Webhooks",
    "__version__",
    "verify_webhook",
]
