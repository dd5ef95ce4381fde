"""Who may do what: API keys, tenants, the admin key."""

import hmac
from dataclasses import dataclass
from pathlib import Path

from kvtool.engine.serving.api import ApiError
from kvtool.errors import KvtoolError

ADMIN = "admin"
SCHEME = "bearer "
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Caller:
    """`tenant` "" shares its blocks with all other callers without one, and all shards; another one shares
    public prefixes only (see `public`)."""

    tenant: str
    admin: bool


class Keys:
    """The keys of `--api-key-file`: a line is `KEY` or `KEY TENANT`; the tenant `admin` may use /kv.

    Without a file everybody may ask, and may administrate if the server listens on loopback only.
    """

    def __init__(self, tenants: dict[str, str] | None, host: str) -> None:
        self._tenants = tenants
        self.several = len(set((tenants or {}).values()) - {ADMIN}) > 1
        self._open_admin = tenants is None and host in LOOPBACK

    @classmethod
    def load(cls, path: Path | None, host: str) -> "Keys":
        """Read the file; KvtoolError names the line that is wrong."""
        if path is None:
            return cls(None, host)
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KvtoolError(f"--api-key-file {path}: {error}") from error
        tenants: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if not words[0].isascii():
                raise KvtoolError(f"{path}, line {number}: a key that is not ASCII", "no header can carry it")
            if len(words) > 2 or words[0] in tenants:
                raise KvtoolError(f"{path}, line {number}: expected KEY or KEY TENANT, each key once")
            tenants[words[0]] = words[1] if len(words) == 2 else ""
        if not tenants:
            raise KvtoolError(f"{path}: no keys in it", "write a line KEY, KEY TENANT or KEY admin for each")
        return cls(tenants, host)

    def caller(self, authorization: str | None) -> Caller:
        """Who sends this Authorization header; 401 if nobody we know."""
        if self._tenants is None:
            return Caller("", self._open_admin)
        given = (authorization or "").strip()
        if given[: len(SCHEME)].lower() == SCHEME:  # which knows no case
            given = given[len(SCHEME) :].strip()
        found = None
        for key, tenant in self._tenants.items():  # all of them: the time must not tell which one was near
            if hmac.compare_digest(key.encode(), given.encode()):
                found = tenant
        if found is None:
            raise ApiError(
                401,
                "Incorrect API key provided.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return Caller("" if found == ADMIN else found, found == ADMIN)

    def admin(self, authorization: str | None) -> None:
        """403 unless the caller may administrate."""
        if not self.caller(authorization).admin:
            raise ApiError(
                403, "This needs the admin key (a line `KEY admin` in --api-key-file).", code="forbidden"
            )
