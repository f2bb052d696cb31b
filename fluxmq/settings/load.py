"""Loads a settings file from disk into ``Settings``. The only module here that does file I/O.

It reads the file and the files that ``*_file`` keys name, and checks that each TLS certificate
matches its key, so that errors a listener would meet only at its first client show before the
start.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fluxmq.model.limits import SECRET_FILE_BYTES_MAX, SETTINGS_FILE_BYTES_MAX
from fluxmq.settings.certificate_files import certificate_facts
from fluxmq.settings.completion import add_listeners, confined
from fluxmq.settings.decode import decode, parse
from fluxmq.settings.listeners import AnyTlsListener
from fluxmq.settings.problems import SettingsError, SettingsProblem
from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Path as KeyPath
from fluxmq.settings.section import Section, shape_at, spell
from fluxmq.settings.values import Secret


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings in this file, with variables taken from ``environ``.

    Raises SettingsError with every problem found: in the file itself, among its values, and with
    the files they name.
    """
    try:
        text = _read(path, SETTINGS_FILE_BYTES_MAX)
    except (OSError, ValueError) as error:
        raise SettingsError([SettingsProblem("", f"{path}: {_reason(error)}")]) from None
    data, problems = parse(text, environ)
    if not problems:
        add_listeners(data)
    problems += _take_secrets(data)
    settings, more = decode(data)
    problems += more
    problems += _files(data)
    known = {problem.path for problem in problems}
    for tls in _tls_users(settings):
        problems += _tls(tls, known)
    if problems:
        order = {problem: index for index, problem in enumerate(dict.fromkeys(problems))}
        raise SettingsError(sorted(order, key=lambda problem: (_rank(problem), order[problem])))
    return settings.model_copy(update={"cluster": confined(settings.cluster)})


def _rank(problem: SettingsProblem) -> int:
    """Return the position of a problem's section in the schema; the file as a whole comes first."""
    section = problem.path.partition(".")[0].partition("[")[0]
    names = list(Settings.model_fields)
    return names.index(section) if section in names else -1


def _read(path: Path, bytes_max: int) -> str:
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"is larger than {bytes_max} bytes")
    return content.decode("utf-8-sig")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def _take_secrets(data: dict[str, Any]) -> list[SettingsProblem]:
    """Replace each ``x_file`` beside a secret ``x`` by the secret itself, in place; keep the file's
    name too."""
    problems = []
    for section, values, path in list(_sections(Settings, data)):
        for name in section.model_fields:
            shape = shape_at(section, (name,))
            source = values.get(f"{name}_file")
            if shape is None or shape.type is not Secret or not isinstance(source, str):
                continue
            place = spell((*path, f"{name}_file"))
            if name in values:
                problems.append(SettingsProblem(place, f"cannot be given together with {name}"))
                continue
            try:
                values[name] = _secret(Path(source))
            except FileNotFoundError:
                continue  # reported with all other missing files
            except (OSError, ValueError) as error:
                problems.append(SettingsProblem(place, f"{source}: {_reason(error)}"))
    return problems


def _sections(
    section: type[Section], values: Any, path: KeyPath = ()
) -> Iterator[tuple[type[Section], dict[str, Any], KeyPath]]:
    """Yield every section in plain values, with its schema and path; skip what does not fit the
    schema."""
    if not isinstance(values, dict):
        return
    yield section, values, path
    for name, value in values.items():
        shape = shape_at(section, (name,))
        if shape is None:
            continue
        if shape.section is not None:
            yield from _sections(shape.section, value, (*path, name))
        elif isinstance(value, tuple) and (below := shape.below(0)) is not None:
            for index, item in enumerate(value):
                if below.section is not None:
                    yield from _sections(below.section, item, (*path, name, index))


def _secret(path: Path) -> str:
    mode = path.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ValueError(f"every user of this machine can read or write it; chmod o-rw {path}")
    text = _read(path, SECRET_FILE_BYTES_MAX).removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("is empty")
    return text


def _files(data: dict[str, Any]) -> Iterator[SettingsProblem]:
    """Yield a problem for each file that the settings name and that cannot be read."""
    for section, values, path in _sections(Settings, data):
        for name, value in values.items():
            shape = shape_at(section, (name,))
            if shape is None or shape.kind != "file" or not isinstance(value, str):
                continue
            if not Path(value).is_file():
                yield SettingsProblem(spell((*path, name)), f"{value}: no such file")
            elif not os.access(value, os.R_OK):
                yield SettingsProblem(spell((*path, name)), f"{value}: cannot be read by this user")


class _Tls(NamedTuple):
    """TLS files of one listener or of the transport, with the path and the key prefix that name
    them."""

    path: str
    keys: str
    cert_file: str
    key_file: str
    ca_file: str | None
    password: Secret | None = None
    named: bool = False
    """Whether the certificate must name hosts."""


def _tls_users(settings: Settings) -> Iterator[_Tls]:
    """Yield the TLS listeners for clients, and the transport between nodes."""
    for path, listener in settings.tls_listeners():
        yield from _pairs(path, listener, listener.ca_file)
    https = settings.server.https
    if https is not None:
        yield from _pairs("server.https", https, None)
    transport = settings.cluster.transport
    if transport.tls_enabled and transport.tls_cert_file and transport.tls_key_file:
        files = transport.tls_cert_file, transport.tls_key_file, transport.tls_ca_file
        yield _Tls("cluster.transport", "tls_", *files)


def _pairs(path: str, listener: AnyTlsListener, ca_file: str | None) -> Iterator[_Tls]:
    """Yield the certificates of one listener."""
    yield _Tls(path, "", listener.cert_file, listener.key_file, ca_file, listener.key_password)
    for index, pair in enumerate(listener.sni_certificates):
        files = pair.cert_file, pair.key_file, None
        place = f"{path}.sni_certificates[{index}]"
        yield _Tls(place, "", *files, pair.key_password, named=True)


def _tls(tls: _Tls, known: set[str]) -> Iterator[SettingsProblem]:
    """Check that certificate, key and CA file load; skipped while they have simpler problems."""
    start = f"{tls.path}.{tls.keys}"
    if any(problem.startswith(start) for problem in known):
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Without a password callback, OpenSSL would prompt on the terminal.
    password = tls.password.reveal() if tls.password is not None else ""
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, lambda: password)
        named = not tls.named or certificate_facts(Path(tls.cert_file).read_bytes()).names
    except (ssl.SSLError, OSError, ValueError) as error:
        named = True
        yield SettingsProblem(
            f"{start}cert_file", f"cannot be used with {tls.keys}key_file: {_tls_reason(error)}"
        )
    if not named:
        yield SettingsProblem(
            f"{start}cert_file", "names no host: its subjectAltName has no DNS name"
        )
    if tls.ca_file is not None:
        try:
            context.load_verify_locations(tls.ca_file)
        except (ssl.SSLError, OSError) as error:
            yield SettingsProblem(f"{start}ca_file", f"holds no certificates: {_tls_reason(error)}")


def _tls_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)
