"""Certificates for servers and clients that tests start, and the URLs that use them."""

from pathlib import Path
from urllib.parse import quote

import trustme


class Certificates:
    """
    An authority, a certificate for a server on this machine, and one for a client.

    Args:
        folder: Where their files are put.

        names: What the server's certificate is for, names or addresses.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        authority = trustme.CA()
        self.authority = self._file(folder, "authority.pem")
        authority.cert_pem.write_to_path(self.authority)
        self.server = self._issue(
            folder, "server", authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
        )
        self.client = self._issue(folder, "client", authority.issue_cert("app@example.org"))

    @staticmethod
    def _file(folder: Path, name: str) -> str:
        return str(folder / name)

    def _issue(self, folder: Path, name: str, issued: trustme.LeafCert) -> tuple[str, str]:
        paths = self._file(folder, f"{name}.pem"), self._file(folder, f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(paths[0])
        issued.private_key_pem.write_to_path(paths[1])
        return paths

    def url(self, port: int, *, with_own: bool = False) -> str:
        """Return the URL of a server; *with_own*, the client shows its certificate there."""
        options = {"ssl_ca_certs": self.authority}
        if with_own:
            options |= {"ssl_certfile": self.client[0], "ssl_keyfile": self.client[1]}
        query = "&".join(f"{name}={quote(path, safe='/')}" for name, path in options.items())
        return f"rediss://localhost:{port}?{query}"


def tls_options(certificates: Certificates, port: int, *, mutual: bool = False) -> list[str]:
    """Return the options of a server with TLS; if *mutual*, clients need a certificate."""
    certificate, key = certificates.server
    return [
        *("--tls-port", str(port), "--tls-auth-clients", "yes" if mutual else "no"),
        *("--tls-ca-cert-file", certificates.authority),
        *("--tls-cert-file", certificate, "--tls-key-file", key),
    ]
