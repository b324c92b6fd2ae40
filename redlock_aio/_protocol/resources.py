"""The resources that users name, and their keys on the masters."""

from redlock_aio._protocol.primitives import JointMutex, Mutex
from redlock_aio._rules.validation import MOST_RESOURCES, text

RESERVED = b"redlock_aio:"
"""The prefix of this library's keys on the masters other than the locks."""

MOST_NAMES = 1_000
"""The number of names that are cached with their keys, so that each is checked once."""


class Resources:
    """
    The keys of one manager's resources.

    Args:
        prefix: Put before each name to make its key.

    Attributes:
        prefix: The prefix of each key, as bytes.

        known: The keys of names that have been checked.
    """

    __slots__ = ("known", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = b"" if prefix == "" else text(prefix, name="key_prefix")
        self.known: dict[tuple[str, ...], Mutex | JointMutex] = {}

    def key(self, resource: str) -> Mutex:
        """
        Return the key of one *resource*.

        Raises:
            TypeError, ValueError: The name is not a valid resource.
        """
        if isinstance(resource, list | tuple | set | frozenset):
            kind = type(resource).__name__
            raise TypeError(f"resource must be a str, not a {kind}: write lock(*names) for several")
        name = text(resource, name="resource")
        key = Mutex(self.prefix + name)
        if key.startswith(RESERVED):
            raise ValueError(
                f"resource must not make a key that starts with {RESERVED.decode()!r}: such keys"
                " belong to this library"
            )
        return key

    def name_of(self, key: bytes) -> str | None:
        """Return the resource with this *key*; ``None`` if no resource can have it."""
        if key.startswith(self.prefix) and not key.startswith(RESERVED):
            try:
                name = key.removeprefix(self.prefix).decode()
                text(name, name="resource")
            except ValueError:  # also of `decode`
                return None
            return name
        return None

    def keys(self, resources: tuple[str, ...]) -> Mutex | JointMutex:
        """
        Return the key of one resource, or the keys of several that are locked together.

        Raises:
            TypeError, ValueError: A name is not a valid resource, or they can't be locked together.
        """
        key = self.key(resources[0]) if len(resources) == 1 else self._joint(resources)
        if len(self.known) >= MOST_NAMES:
            self.known.clear()
        self.known[resources] = key
        return key

    def _joint(self, resources: tuple[str, ...]) -> JointMutex:
        if not 1 < len(resources) <= MOST_RESOURCES:
            wanted = f"at most {MOST_RESOURCES} resources" if resources else "at least one resource"
            raise TypeError(f"lock() wants {wanted}, not {len(resources)}")
        keys = [self.key(resource) for resource in resources]
        if len(set(keys)) < len(keys):
            twice = next(name for name in resources if resources.count(name) > 1)
            raise ValueError(f"resources must differ: {twice!r} is named twice")
        return JointMutex(sorted(keys))
