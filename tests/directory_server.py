"""A real directory server (OpenLDAP's slapd) with a few users and groups, for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.broker import CERTIFICATES, HOST, free_ports

SLAPD = "/usr/sbin/slapd"
SCHEMAS = Path("/etc/ldap/schema")
MODULES = Path("/usr/lib/ldap")
BASE = "dc=example,dc=org"
ADMIN, ADMIN_PASSWORD = f"cn=admin,{BASE}", "administrator's"
OTHER_HOST = "127.0.0.2"
"""It listens here as well, where its certificate does not count."""
DEADLINE = 15.0

CONFIGURATION = """\
include {schemas}/core.schema
include {schemas}/cosine.schema
include {schemas}/inetorgperson.schema
modulepath {modules}
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {certificates}/ca.pem
TLSCertificateFile {certificates}/server.pem
TLSCertificateKeyFile {certificates}/server.key
database mdb
suffix "{base}"
rootdn "{admin}"
rootpw "{password}"
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by users read by * none
"""

ENTRIES = """\
dn: {base}
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{base}
objectClass: organizationalUnit
ou: groups

dn: uid=anna,ou=people,{base}
objectClass: inetOrgPerson
uid: anna
cn: Anna Example
sn: Example
userPassword: anna's

dn: uid=bert,ou=people,{base}
objectClass: inetOrgPerson
uid: bert
cn: Bert Example
sn: Example
userPassword: bert's

dn: uid=a\\2Cb*(c),ou=people,{base}
objectClass: inetOrgPerson
uid: a,b*(c)
cn: Odd
sn: Name
userPassword: odd's

dn: uid=twin,ou=people,{base}
objectClass: inetOrgPerson
uid: twin
cn: Twin
sn: One
userPassword: twin's

dn: uid=twin,ou=groups,{base}
objectClass: inetOrgPerson
uid: twin
cn: Twin
sn: Two
userPassword: twin's

dn: cn=Operators,ou=groups,{base}
objectClass: groupOfNames
cn: Operators
member: uid=anna,ou=people,{base}

dn: cn=writers,ou=groups,{base}
objectClass: groupOfNames
cn: writers
member: uid=anna,ou=people,{base}
member: uid=bert,ou=people,{base}
member: uid=a\\2Cb*(c),ou=people,{base}
"""


@contextmanager
def directory_server(folder: Path) -> Iterator[tuple[str, str]]:
    """A directory for a block of code: its ``ldap://`` and ``ldaps://`` addresses."""
    if shutil.which(SLAPD) is None:
        pytest.skip("slapd is not installed")
    (folder / "data").mkdir()
    file = folder / "slapd.conf"
    names = {"base": BASE, "admin": ADMIN, "password": ADMIN_PASSWORD, "schemas": SCHEMAS}
    names |= {"folder": folder, "certificates": CERTIFICATES, "modules": MODULES}
    file.write_text(CONFIGURATION.format_map(names))
    load = [SLAPD, "-T", "add", "-f", str(file)]
    entries = ENTRIES.format(base=BASE)
    subprocess.run(load, input=entries.encode(), check=True, capture_output=True, timeout=30)
    ports = free_ports(2)
    urls = [
        f"{scheme}://{host}:{port}"
        for host in (HOST, OTHER_HOST)
        for scheme, port in zip(("ldap", "ldaps"), ports, strict=True)
    ]
    command = [SLAPD, "-f", str(file), "-h", " ".join(urls), "-d", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + DEADLINE
            while not _listens(ports[1]):
                assert process.poll() is None, "slapd ended"
                assert time.monotonic() < end, "slapd does not listen"
                time.sleep(0.02)
            yield urls[0], urls[1]
        finally:
            process.terminate()
            process.wait(10)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False
