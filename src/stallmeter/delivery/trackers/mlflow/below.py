"""What lies below MLflow's client: drivers of databases and clients of stores of files, and how they fail.

They are known by name, of the packages that are loaded: none of them is imported here.
"""

from __future__ import annotations

import sys

from ...messages import client_message

_BASES = {
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "boto3.exceptions": ("Boto3Error",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "google.api_core.exceptions": ("GoogleAPIError",),
    "azure.core.exceptions": ("AzureError",),
}

_NO_CREDENTIALS = frozenset(
    {
        "ClientAuthenticationError",
        "DefaultCredentialsError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
    }
)

_INSTALLED_AS = {
    "MySQLdb": "mysqlclient",
    "azure.storage.blob": "azure-storage-blob",
    "google.cloud": "google-cloud-storage",
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
}
"""Packages that are not installed under the name by which they are imported."""


def errors_below() -> tuple[type[BaseException], ...]:
    """Return the base classes of what may rise through MLflow's client, besides its own and the system's errors."""
    loaded = ((sys.modules.get(module), names) for module, names in _BASES.items())
    found = (getattr(module, name, None) for module, names in loaded for name in names)
    return (ImportError, *(kind for kind in found if isinstance(kind, type)))


def what_is_missing(exc: BaseException, uri: str) -> str | None:
    """Return what is missing here and how to get it, where an error says so; None for every other error."""
    names = {kind.__name__ for kind in type(exc).__mro__}
    if isinstance(exc, ImportError):
        package = exc.name or ""
        install = f"; install it with: pip install {_INSTALLED_AS.get(package, package)}" if package else ""
        return f"MLflow needs a package for this: {client_message(exc, uri)}{install}"
    if "ArgumentError" in names:
        driver = uri.partition("://")[0]
        example = f"{driver.partition('+')[0]}://… without a driver, or with one that is installed"
        return f"MLflow cannot use the database {driver}://…: {client_message(exc, uri)}; give {example}"
    if names & _NO_CREDENTIALS:
        return f"no credentials for the store of the run's files: {client_message(exc, uri)}; set those of that store"
    return None


def status_of(exc: BaseException) -> int:
    """Return the status that a server answered with; 0 where an error does not tell."""
    if type(exc).__name__ == "S3UploadFailedError" and exc.__context__ is not None:
        exc = exc.__context__  # of which it keeps the text only
    response = getattr(exc, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return int(getattr(response, "status_code", 0))
