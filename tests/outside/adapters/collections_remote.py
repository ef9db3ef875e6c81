"""CPython's tests of queues, lists and dicts, on objects that live in actors.

What is adapted: the classes under test are remote ones that inherit from the standard ones, and
`assertEqual` compares contents, since a handle is equal only to another handle of its actor.  The
tests of repr that nest as many lists as Python has frames are left out: each would be an actor.
"""

import queue
import unittest
from typing import Any

from test import list_tests, mapping_tests, test_queue

import remotely

remotely.connect(cpus=8)


@remotely.remote_class(cpus=0, concurrency=4)
class Queue(queue.Queue): ...


@remotely.remote_class(cpus=0, concurrency=4)
class LifoQueue(queue.LifoQueue): ...


@remotely.remote_class(cpus=0, concurrency=4)
class PriorityQueue(queue.PriorityQueue): ...


@remotely.remote_class(cpus=0)
class List(list): ...


@remotely.remote_class(cpus=0)
class Dict(dict): ...


class QueueMixin(test_queue.BaseQueueTestMixin):
    queue = queue

    def setUp(self) -> None:
        super().setUp()
        self.type2test = self.kind


class QueueTest(QueueMixin, unittest.TestCase):
    kind: Any = Queue


class LifoQueueTest(QueueMixin, unittest.TestCase):
    kind: Any = LifoQueue


class PriorityQueueTest(QueueMixin, unittest.TestCase):
    kind: Any = PriorityQueue


class ByContents:
    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:  # noqa: N802 - theirs
        super().assertEqual(contents(first), contents(second), msg)  # noqa: PT009 - theirs


def contents(value: Any) -> Any:
    if isinstance(value, List):
        return list(value)
    return dict(value.items()) if isinstance(value, Dict) else value


class ListTest(ByContents, list_tests.CommonTest):
    type2test = List
    test_repr_deep = None


class DictTest(ByContents, mapping_tests.TestHashMappingProtocol):
    type2test = Dict
    test_repr_deep = None
