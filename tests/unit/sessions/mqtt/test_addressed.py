"""What is remembered of queues that a client publishes to ends with the permissions and limits it was found out under."""

from fluxmq.auth.policy import TopicPolicy
from fluxmq.sessions.mqtt.addressed import TOPIC_BYTES_MAX, TOPICS_MAX, Addressed

POLICY = TopicPolicy(["$queue/#"], [])
LIMITS = object()


def test_a_topic_is_known_under_its_policy_and_limits() -> None:
    known = Addressed()
    assert not known.knows(b"$queue/a", POLICY, LIMITS)
    known.add(b"$queue/a", POLICY, LIMITS)
    assert known.knows(b"$queue/a", POLICY, LIMITS)
    assert not known.knows(b"$queue/b", POLICY, LIMITS)
    assert not known.knows(b"$queue/a", TopicPolicy(["$queue/#"], []), LIMITS)
    assert not known.knows(b"$queue/a", POLICY, object())


def test_another_policy_begins_anew() -> None:
    known = Addressed()
    known.add(b"$queue/a", POLICY, LIMITS)
    other = TopicPolicy(["$queue/b"], [])
    known.add(b"$queue/b", other, LIMITS)
    assert known.knows(b"$queue/b", other, LIMITS)
    assert not known.knows(b"$queue/a", other, LIMITS)


def test_it_is_bounded() -> None:
    known = Addressed()
    long = b"$queue/" + b"x" * TOPIC_BYTES_MAX
    known.add(long, POLICY, LIMITS)
    assert not known.knows(long, POLICY, LIMITS)
    for number in range(TOPICS_MAX + 1):
        known.add(b"$queue/%d" % number, POLICY, LIMITS)
    assert known.knows(b"$queue/%d" % TOPICS_MAX, POLICY, LIMITS)
    assert not known.knows(b"$queue/0", POLICY, LIMITS)
