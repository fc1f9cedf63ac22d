"""The addresses that each node needs: those of its process's peers. All addresses, sent to everybody, grow too fast."""

from strobe.protocol import Lifecycle
from strobe.runtime.coordinator.node_registry import Members
from strobe.runtime.messages.control import AddressBook

AT_ONCE_MAX = 64
"""Up to this many processes, the others learn the address of a new one at once, otherwise at the next regular check."""


class AddressBooks:
    """The address book that each node has."""

    def __init__(self, lifecycle: Lifecycle, members: Members) -> None:
        self._membership = lifecycle.membership
        self._members = members
        self._books: dict[str, AddressBook] = {}
        # What the newest books were made from.
        self._known: tuple[object, ...] = ()

    def welcome(self, process: str) -> None:
        """Send the book of a process that has just connected."""
        self._books.pop(process, None)
        if len(self._members.by_process) <= AT_ONCE_MAX:
            self.send()
        self._send(process)

    def send(self) -> None:
        """Send its book to every node whose book has changed."""
        known = self._members.addresses(), self._membership.view, self._membership.everyone
        if known != self._known:
            self._known = known
            for member in self._members.connected():
                self._send(member.process)

    def _send(self, process: str) -> None:
        book = self._book(process)
        if book != self._books.get(process):
            self._books[process] = book
            self._members.send(process, book)

    def _book(self, process: str) -> AddressBook:
        """Return the addresses of the processes that `process` has channels to, and of those outside the view.

        A process that leaves or joins gets all addresses: the view does not have its channels, but messages that it
        has sent may still be on their way.
        """
        membership, known = self._membership, self._members.by_process
        view, everyone = membership.view, membership.everyone
        if process not in view.members:
            return AddressBook(self._members.addresses(), everyone)
        peers = {channel.target for channel in view.outgoing(process)}.union(membership.leaving)
        wanted = peers.union(known.keys() - view.members)
        return AddressBook({name: known[name].address for name in wanted if name in known}, tuple(sorted(peers)))
