from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy.agent import signing
from hwnas.deploy.agent.signing import Challenges, key_of, request_signature, same

PARTS = ("certificate", "challenge", "nonce", "PUT", "/v1/jobs/1", "digest")


@given(index=st.integers(0, len(PARTS) - 1), other=st.text("abcdef0123456789/", min_size=1))
def test_signature_is_valid_for_one_request_only(index: int, other: str) -> None:
    key = key_of("token")
    changed = (*PARTS[:index], PARTS[index] + other, *PARTS[index + 1 :])
    assert same(request_signature(key, *PARTS), request_signature(key, *PARTS))
    assert not same(request_signature(key, *PARTS), request_signature(key, *changed))
    assert not same(request_signature(key, *PARTS), request_signature(key_of(other), *PARTS))


def test_key_does_not_contain_the_token() -> None:
    assert "token" not in key_of("token")
    assert key_of("token\n") == key_of("token")


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_challenges_admit_a_nonce_once() -> None:
    challenges = Challenges()
    challenge = challenges.current()
    assert challenges.admit(challenge, "a")
    assert not challenges.admit(challenge, "a")
    assert challenges.admit(challenge, "b")
    assert not challenges.admit("another", "c")


def test_challenges_are_renewed_and_keep_the_previous_one() -> None:
    clock = Clock()
    challenges = Challenges(clock)
    first = challenges.current()
    assert challenges.admit(first, "a")
    clock.seconds += 301
    second = challenges.current()
    assert second != first
    assert not challenges.admit(first, "a"), "seen before the renewal"
    assert challenges.admit(first, "b")
    clock.seconds += 301
    assert not challenges.admit(first, "c")
    assert challenges.admit(second, "c")
    clock.seconds += 10_000
    assert not challenges.admit(second, "d")


def test_challenges_keep_a_bounded_number_of_nonces() -> None:
    challenges = Challenges()
    most = signing._MOST_NONCES
    admitted = sum(challenges.admit(challenges.current(), str(n)) for n in range(5 * most))
    assert admitted == 5 * most
    assert sum(map(len, challenges._nonces.values())) <= 2 * most
