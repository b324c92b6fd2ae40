"""
A view of Django under a lock: python django_site.py runserver

Try it: curl --request POST http://localhost:8000/accounts/42/count

The lock is around the transaction. The other way round, as with ATOMIC_REQUESTS, the lock would
be released before the transaction is committed, and the next request would not see its result.

docs/how-to/recipes.md explains it.
"""

import os
import sys
from collections.abc import Callable

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from redlock_aio import LockNotAcquiredError, QuorumUnavailableError
from redlock_aio.sync import Redlock

settings.configure(  # your settings.py
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}},
    MIDDLEWARE=[f"{__name__}.lock_errors"],
    REDLOCK_MASTERS=os.environ.get("REDLOCK_MASTERS", "redis://localhost:6379").split(","),
    ROOT_URLCONF=__name__,
)

redlock = Redlock(settings.REDLOCK_MASTERS, key_prefix="lock:")  # in a module of your app


class LockErrors:
    """Answers to requests that get no lock. A LockLostError is left to Django: a 500."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, _request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, QuorumUnavailableError):  # a LockNotAcquiredError too
            detail = {"detail": "locks are not available"}
            return JsonResponse(detail, status=503, headers={"Retry-After": "5"})
        if isinstance(error, LockNotAcquiredError):
            detail = {"detail": "it is being worked on"}
            return JsonResponse(detail, status=409, headers={"Retry-After": "1"})
        return None


lock_errors = LockErrors


@require_POST
def count(_request: HttpRequest, account: int) -> HttpResponse:
    with redlock.lock(f"account:{account}", ttl=5_000, wait=1_000) as lease:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT total FROM account WHERE id = %s", [account])
            if (row := cursor.fetchone()) is None:
                raise Http404(f"there is no account {account}")
            total = row[0] + 1
            cursor.execute("UPDATE account SET total = %s WHERE id = %s", [total, account])
            lease.ensure_valid()  # if it raises, the transaction is rolled back
    return JsonResponse({"total": total})


urlpatterns = [path("accounts/<int:account>/count", count)]
application = get_wsgi_application()


def make_accounts() -> None:  # your migrations
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, total INTEGER)")
        cursor.execute("INSERT OR IGNORE INTO account VALUES (42, 0), (43, 0)")


if __name__ == "__main__":
    make_accounts()
    execute_from_command_line(sys.argv)
