"""Bodies that other nodes or files may hold: their bytes stay as they were.

Everything else on the control socket stays between processes of one start, and may change.
"""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.ipc.clusters import (
    AuditListing,
    AuditRow,
    ForgetNode,
    GroupOutcome,
    HashReply,
    HashRequest,
    MemberChange,
    MemberRow,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.messages import Failure
from fluxmq.ipc.permission_messages import (
    PermissionClear,
    PermissionSet,
    TopicPermissionSet,
    UserTags,
)
from fluxmq.ipc.topology_messages import TopologyChanged, change_body, pack_set, read_sets
from fluxmq.ipc.user_messages import (
    UserAdd,
    UserDelete,
    UserEnable,
    UserPassword,
    UserPermit,
    user_from_body,
    user_to_body,
)
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal

HASH = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$" + "A" * 43
BOB = User("bob", HASH, None, (), (), enabled=False)
EVE = User(
    "eve",
    HASH,
    StoredKeys(4096, b"s" * 16, b"k" * 32, b"K" * 32),
    ("a/#", "u/{username}"),
    ("#",),
    enabled=True,
    tags=("administrator", "x"),
    permissions=(VhostPermission("/", "", "^q", ".*"),),
    topic_permissions=(TopicPermission("/", "amq.topic", "^{username}", ""),),
)
MEMBER = MemberRow("n1", 1, "voter", True, "n2", -1, 3, "probe", True, 12, "")
ROW = RaftRow("g", "n2", 0, "leader", "", 3, "n2", 9, 8, 10, 5, 1, 0.25, (MEMBER,))


@pytest.mark.parametrize(
    ("user", "kept"),
    [
        (
            BOB,
            (
                "89a46e616d65a3626f62a468617368d95e246172676f6e32696424763d3139246d3d36342c743d31"
                "2c703d31246332467364484e686248527a5957783063324673644124414141414141414141414141"
                "41414141414141414141414141414141414141414141414141414141414141a5736372616dc0a770"
                "75626c69736890a973756273637269626590a7656e61626c6564c2a47461677390ab7065726d6973"
                "73696f6e7390b1746f7069635f7065726d697373696f6e7390"
            ),
        ),
        (
            EVE,
            (
                "89a46e616d65a3657665a468617368d95e246172676f6e32696424763d3139246d3d36342c743d31"
                "2c703d31246332467364484e686248527a5957783063324673644124414141414141414141414141"
                "41414141414141414141414141414141414141414141414141414141414141a5736372616d84aa69"
                "7465726174696f6e73cd1000a473616c74c41073737373737373737373737373737373aa73746f72"
                "65645f6b6579c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b"
                "aa7365727665725f6b6579c4204b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
                "4b4b4b4b4ba77075626c69736892a3612f23ac752f7b757365726e616d657da97375627363726962"
                "6591a123a7656e61626c6564c3a47461677392ad61646d696e6973747261746f72a178ab7065726d"
                "697373696f6e739184a576686f7374a12fa9636f6e666967757265a0a57772697465a25e71a47265"
                "6164a22e2ab1746f7069635f7065726d697373696f6e739184a576686f7374a12fa865786368616e"
                "6765a9616d712e746f706963a57772697465ab5e7b757365726e616d657da472656164a0"
            ),
        ),
    ],
)
def test_users_in_entries_and_snapshots(user, kept):
    assert msgpack.packb(user_to_body(user)).hex() == kept
    assert user_from_body(msgpack.unpackb(bytes.fromhex(kept)), patterns=False) == user


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Failure("away", "no leader"), "82a4636f6465a461776179a474657874a96e6f206c6561646572"),
        (ForgetNode("n1", force=True), "82a46e6f6465a26e31a5666f726365c3"),
        (HashReply("00000000000000ff"), "81a7726f6c6c696e67b030303030303030303030303030306666"),
        (HashRequest("g", 7), "83a567726f7570a167a5696e64657807a6706173736564c2"),
        (
            MemberChange("g", "n1", "add"),
            "83a567726f7570a167a46e6f6465a26e31a66368616e6765a3616464",
        ),
        (
            GroupOutcome("g", "n1", "why"),
            "83a567726f7570a167a46e6f6465a26e31a770726f626c656da3776879",
        ),
        (
            ROW,
            (
                "8ea567726f7570a167a46e6f6465a26e32a5736861726400a4726f6c65a66c6561646572a770726f"
                "626c656da0a47465726d03a66c6561646572a26e32a6636f6d6d697409a76170706c69656408a46c"
                "6173740aa8736e617073686f7405a9656c656374696f6e7301a96673796e635f703939cb3fd00000"
                "00000000a76d656d62657273918ba46e6f6465a26e31a66e756d62657201a46b696e64a5766f7465"
                "72a56c65616473c3a77365656e5f6279a26e32a56d61746368ffa36c616703a57374617465a57072"
                "6f6265a9636f6e6e6563746564c3a7636f6e746163740ca5646f756274a0"
            ),
        ),
        (Transfer("g", "n1"), "82a567726f7570a167a46e6f6465a26e31"),
        (
            AuditListing("g", (AuditRow("n1", "voter", 9, "ff", "differs", "why"),)),
            (
                "82a567726f7570a167a4726f77739186a46e6f6465a26e31a46b696e64a5766f746572a5696e6465"
                "7809a7726f6c6c696e67a26666a776657264696374a764696666657273a770726f626c656da37768"
                "79"
            ),
        ),
        (
            UserPassword("bob", HASH, None),
            (
                "83a46e616d65a3626f62a468617368d95e246172676f6e32696424763d3139246d3d36342c743d31"
                "2c703d31246332467364484e686248527a5957783063324673644124414141414141414141414141"
                "41414141414141414141414141414141414141414141414141414141414141a5736372616dc0"
            ),
        ),
        (
            UserPermit("bob", ("a",), None),
            "83a46e616d65a3626f62a77075626c69736891a161a9737562736372696265c0",
        ),
        (UserEnable("bob", enabled=True), "82a46e616d65a3626f62a7656e61626c6564c3"),
        (UserDelete("bob"), "81a46e616d65a3626f62"),
        (UserTags("bob", ("x",)), "82a46e616d65a3626f62a47461677391a178"),
        (PermissionClear("bob", "/"), "83a46e616d65a3626f62a576686f7374a12fa865786368616e6765c0"),
        (
            TopologyChanged(3, (None, Refusal(406, "no")), ("shard-1",)),
            (
                "83a87265766973696f6e03a7726573756c747392c092cd0196a26e6fab756e636f6e6669726d6564"
                "91a773686172642d31"
            ),
        ),
    ],
)
def test_bodies_between_nodes(value, kept):
    assert msgpack.packb(value.to_body()).hex() == kept
    assert type(value).from_body(msgpack.unpackb(bytes.fromhex(kept))) == value


def test_changes_of_the_topology_between_nodes():
    kept = (
        "81a473657473919292a96164645f76686f737481a576686f737485a46e616d65a162a66c696d6974"
        "7380b264656661756c745f71756575655f74797065a7636c6173736963a47461677390ab64657363"
        "72697074696f6ea092ad6465636c6172655f717565756581a571756575658ca576686f7374a162a4"
        "6e616d65a171a474797065a7636c6173736963a764757261626c65c2a96578636c7573697665c2ab"
        "6175746f5f64656c657465c2a9617267756d656e747381ac782d6d61782d6c656e67746803a56f77"
        "6e6572a0a567726f7570a0a66f726967696ea6636c69656e74a96d6f76696e675f746fa0a96d6967"
        "726174696f6ea0"
    )
    changes = (
        AddVhost(Vhost("b")),
        DeclareQueue(QueueRecord("b", "q", arguments={"x-max-length": 3})),
    )
    assert msgpack.packb(change_body([pack_set(changes)])).hex() == kept
    assert read_sets(msgpack.unpackb(bytes.fromhex(kept))) == [changes]


def test_additions_of_users_and_permissions_between_nodes():
    assert msgpack.packb(UserAdd(EVE).to_body()) == b"\x81\xa4user" + msgpack.packb(
        user_to_body(EVE)
    )
    assert msgpack.packb(PermissionSet("bob", EVE.permissions[0]).to_body()).hex() == (
        "82a46e616d65a3626f62aa7065726d697373696f6e84a576686f7374a12fa9636f6e666967757265"
        "a0a57772697465a25e71a472656164a22e2a"
    )
    assert msgpack.packb(TopicPermissionSet("bob", EVE.topic_permissions[0]).to_body()).hex() == (
        "82a46e616d65a3626f62aa7065726d697373696f6e84a576686f7374a12fa865786368616e6765a9"
        "616d712e746f706963a57772697465ab5e7b757365726e616d657da472656164a0"
    )
