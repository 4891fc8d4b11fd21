from __future__ import annotations

from pathlib import Path

import pytest

from hwnas.errors import ConfigError, HwnasError, StorageError
from hwnas.recipe import SearchConfig
from hwnas.search.study.storage import check_storage, close_storage, open_storage

SECRET = "tell-nobody"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/study.db",
        "sqlite:///study.db",
        "postgresql://me@host/database",
        "postgresql://me:$PASSWORD@host:5432/database",
        "postgresql+psycopg://me:${PASSWORD}@host/database",
        "grpc://host:13000",
        "$HWNAS_STORAGE",
    ],
)
def test_check_storage_accepts_addresses_without_a_password(url: str) -> None:
    check_storage(url)
    assert SearchConfig(storage=url).storage == url


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host/database",
        f"postgresql://me:{SECRET}@host:5432/database?sslmode=require",
        f"postgresql://host/database?user=me&password={SECRET}",
    ],
)
def test_search_config_refuses_a_password_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="holds a password, which would be copied") as caught:
        SearchConfig(storage=url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["study.db", "mysql://host/database", "redis://host"])
def test_check_storage_refuses_other_addresses(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"not a supported address.*expected sqlite:////folder/study\.db, "
    ):
        check_storage(url)


@pytest.mark.parametrize(
    ("url", "kind", "told"),
    [
        ("$HWNAS_NOT_SET", ConfigError, "names $HWNAS_NOT_SET, which is not set"),
        ("grpc://host", ConfigError, "expected grpc://HOST:PORT"),
        ("sqlite:////no/such/folder/study.db", StorageError, "cannot open the storage sqlite:"),
        ("$WRONG", StorageError, "cannot open the storage $WRONG: "),
    ],
)
def test_open_storage_reports_failures_without_secrets(
    url: str, kind: type[HwnasError], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", f"postgresql://me:{SECRET}@127.0.0.1:1/database")
    with pytest.raises(kind) as caught:
        open_storage(url)
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_open_storage_expands_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", str(tmp_path))
    close_storage(open_storage("sqlite:///${HERE}/study.db"))
    assert (tmp_path / "study.db").exists()
