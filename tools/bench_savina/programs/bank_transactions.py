"""Bank transactions: a teller asks accounts to pay each other; a payment is answered when the other
account has said that it has the money."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes(
    {"accounts": 3, "transactions": 20},
    {"accounts": 8, "transactions": 500},
    {"accounts": 1_000, "transactions": 50_000},
)
BEGIN = 1_000_000


@actor
class Account:
    def __init__(self) -> None:
        self.money = BEGIN

    async def pay(self, other: Any, amount: int) -> None:
        self.money -= amount
        await call(other.credit, amount)

    async def credit(self, amount: int) -> None:
        self.money += amount

    async def balance(self) -> int:
        return self.money


@actor
class Teller:
    async def work(self, accounts: list[Any], transactions: int) -> int:
        done = await asyncio.gather(
            *[
                call(accounts[one].pay, accounts[other], amount)
                for one, other, amount in payments(len(accounts), transactions)
            ]
        )
        return len(done)


def payments(accounts: int, transactions: int) -> Iterator[tuple[int, int, int]]:
    """Yield who pays, whom, and how much."""
    chance = random.Random(0)
    for _ in range(transactions):
        one, other = chance.sample(range(accounts), 2)
        yield one, other, chance.randrange(1_000)


async def prepare(accounts: int, transactions: int) -> list[Any]:
    return [*await spawn(Teller, 1), *await spawn(Account, accounts)]


async def play(teller: Any, *made: Any, accounts: int, transactions: int) -> object:
    done = await call(teller.work, list(made), transactions)
    return done, await asyncio.gather(*[call(account.balance) for account in made])


def expected(accounts: int, transactions: int) -> object:
    money = [BEGIN] * accounts
    for one, other, amount in payments(accounts, transactions):
        money[one] -= amount
        money[other] += amount
    return transactions, money
