"""Secrets out of texts, whatever form they come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallmeter.records.redaction import VARIABLES, redact, with_gaps, without_secrets


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a http://u:p@h b sqlite:///x.db", "a http://h b sqlite:///x.db"),
        ("postgresql+psycopg2://me:p@ss@db:5432/x refused", "postgresql+psycopg2://db:5432/x refused"),
        ("postgresql://me:Zm9v/YmFy@db:5432/x refused", "postgresql://db:5432/x refused"),
        ("postgresql://me:S3cr?tPass@db/x refused", "postgresql://db/x refused"),
        ("postgresql://db/x?user=a@b:c", "postgresql://db/x?user=a@b:c"),
        ("mysql://me:p@s/w:d@db/x and http://h/x@y", "mysql://db/x and http://h/x@y"),
        ("file://host:80/x@y http://me:pw@h/x@y", "file://host:80/x@y http://h/x@y"),
        ("403 for url: https://a.blob.net/c?sv=20&sig=AbC%2Bx%3D", "403 for url: https://a.blob.net/c?sv=20&sig=***"),
        ("AccountName=a;AccountKey=x/y==;EndpointSuffix=e", "AccountName=a;AccountKey=***;EndpointSuffix=e"),
        ('{"password": "hunter22", "user": "me"}', '{"password": ***, "user": "me"}'),
        ("Authorization: Basic dXNlcjpwYXNz refused", "Authorization: Basic *** refused"),
        ('{"a":"http://u:p@h/1","b":"http://v:q@g/2"}', '{"a":"http://h/1","b":"http://g/2"}'),
        ("mysql://u:p@h/1,mysql://v:q@g/2", "mysql://h/1,mysql://g/2"),
        ("a basic understanding; design=big", "a basic understanding; design=big"),
        ("http://host/x?user=me&password=pw&n=1", "http://host/x?user=me&password=***&n=1"),
        ("GET /artifacts?token=abc.def HTTP/1.1", "GET /artifacts?token=*** HTTP/1.1"),
        ("https://s3/x?X-Amz-Signature=0f0f&X-Amz-Date=1", "https://s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("?sslpassword=s3cretpw2", "?sslpassword=***"),
        ("NEPTUNE_API_TOKEN=eyJhcGk== python train.py", "NEPTUNE_API_TOKEN=*** python train.py"),
        ("export DATABRICKS_TOKEN=dapi0123", "export DATABRICKS_TOKEN=***"),
        ("AWS_SECRET_ACCESS_KEY=wJalr/K7", "AWS_SECRET_ACCESS_KEY=***"),
        ("Client(api_key='my key', apikey=\"k\")", "Client(api_key=***, apikey=***)"),
        ("Authorization: Bearer eyJhbGciOi.J9-x", "Authorization: Bearer ***"),
        ("max_tokens 512, token budget, a@b.c", "max_tokens 512, token budget, a@b.c"),
    ],
)
def test_what_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize("name", VARIABLES)
def test_the_value_of_a_variable_is_hidden_wherever_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "dapi-0123456789")
    assert redact("the server does not know 'dapi-0123456789'.") == "the server does not know '***'."
    monkeypatch.setenv(name, "a")
    assert redact("an answer") == "an answer"  # too short to be told from words


def test_the_secrets_of_a_known_address_are_hidden_wherever_they_stand() -> None:
    address = "http://user:s3cret%2Fpw@host/x?key=abc"
    said = f"{address}: cannot log in with s3cret%2Fpw, nor with s3cret/pw"
    assert redact(said, address) == "http://host/x: cannot log in with ***, nor with ***"
    assert redact("a b", "http://u:a@host") == "a b"


@pytest.mark.parametrize(
    ("url", "short", "gaps"),
    [
        ("http://u:p@h:80/x?a=b", "http://h:80/x", "http://***@h:80/x?***"),
        ("postgresql://u@h/db", "postgresql://h/db", "postgresql://u@h/db"),
        ("postgresql://u:S3cr?t@h/db?ssl=1", "postgresql://h/db", "postgresql://***@h/db?***"),
        ("sqlite:////x/y@z.db", "sqlite:////x/y@z.db", "sqlite:////x/y@z.db"),
        ("./runs", "./runs", "./runs"),
    ],
)
def test_a_url_without_secrets(url: str, short: str, gaps: str) -> None:
    assert without_secrets(url) == short
    assert with_gaps(url) == gaps


@given(st.text(), st.text())
def test_any_text_can_be_redacted(text: str, address: str) -> None:
    assert len(redact(text, address)) <= 4 * len(text) + len(address)


@pytest.mark.parametrize(
    "said",
    [
        "cannot open DRIVER={ODBC};UID=sa;PWD=hunter22",
        "cannot open odbc_connect=DRIVER%3D%7BODBC%7D%3BUID%3Dsa%3BPWD%3Dhunter22",
        "cannot open DRIVER%3D%7BODBC%7D%3BUID%3Dsa%3BPWD%3Dhunter22",
        "PWD=hunter22 was refused",
        "passphrase=hunter22",
        "{'x-api-key': 'hunter22hunter22'}",
        "x-api-key: hunter22hunter22",
    ],
)
def test_the_query_of_an_address(said: str) -> None:
    """A driver repeats it decoded, or a part of it."""
    address = "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC%7D%3BUID%3Dsa%3BPWD%3Dhunter22"
    assert "hunter22" not in redact(said, address)
