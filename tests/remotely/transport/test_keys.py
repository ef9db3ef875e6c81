"""Keys in memory."""

import json
import pickle

from remotely.transport import keys
from remotely.transport.keys import KeyPair, MasterKey, MemberKey


def test_the_repr_of_a_key_hides_its_secret() -> None:
    master, client, _, _ = keys.fresh_keys()
    for holder, pair in ((master, master.pair), (client, client.pair), (client.pair, client.pair)):
        for text in (repr(holder), str(holder), f"{holder}"):
            assert pair.secret.decode() not in text
            assert pair.public.decode() in text


def test_fresh_keys_match_and_differ_each_time() -> None:
    master, client, worker, viewer = keys.fresh_keys()
    assert master.role_of(client.pair.public) == "client" == client.role
    assert master.role_of(worker.pair.public) == "worker" == worker.role
    assert master.role_of(viewer.pair.public) == "viewer" == viewer.role
    assert client.master_public == worker.master_public == master.pair.public
    assert keys.fresh_keys()[0] != master


def test_keys_pass_through_json() -> None:
    master, client, worker, viewer = keys.fresh_keys()
    assert MasterKey.from_dict(json.loads(json.dumps(master.to_dict()))) == master
    for member in (client, worker, viewer):
        assert MemberKey.from_dict(json.loads(json.dumps(member.to_dict()))) == member


def test_keys_pass_through_pickle() -> None:
    pair = keys.fresh_pair()
    assert pickle.loads(pickle.dumps(pair)) == pair == KeyPair(pair.public, pair.secret)
