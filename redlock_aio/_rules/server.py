"""What a server says of itself, as far as it matters to a lock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself, as far as it matters to a lock."""

    version: str
    run_id: str
    role: str
    evicts: str

    @classmethod
    def parse(cls, text: bytes) -> "ServerInfo":
        """Read the reply to ``INFO``."""
        lines = text.decode("utf-8", "replace").splitlines()
        said = dict(line.split(":", 1) for line in lines if ":" in line)
        policy = said.get("maxmemory_policy", "noeviction")
        limited = said.get("maxmemory", "0") != "0"
        return cls(
            version=said.get("redis_version", "unknown"),
            run_id=said.get("run_id", ""),
            role=said.get("role", "unknown"),
            evicts=policy if limited and policy != "noeviction" else "",
        )

    @property
    def objection(self) -> str:
        """Why this server can't vote, empty if it can."""
        if self.role != "master":
            return f"not a master but a {self.role}"
        if not self.run_id:
            return "INFO names no run_id, so it can't be told from the other masters"
        return ""

    @property
    def caution(self) -> str:
        """What may make locks vanish there, empty if nothing is known."""
        if not self.evicts:
            return ""
        return (
            f"its maxmemory-policy {self.evicts} may drop locks when memory runs out;"
            " only noeviction is safe"
        )
