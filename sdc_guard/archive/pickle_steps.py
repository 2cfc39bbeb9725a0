"""The loop of the pickle machine.

One long function: a call an operation is most of what reading a structure takes, and an archive
has thousands of structures. What is not written out here is in the machine's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pickle import UnpicklingError
from typing import Any, Final

_GET, _LONG_GET, _PUT, _LONG_PUT, _MEMOIZE = 0x68, 0x6A, 0x71, 0x72, 0x94
_INT_1, _INT_2, _FALSE = 0x4B, 0x4D, 0x89
_TEXT, _SHORT_TEXT = 0x58, 0x8C
_START, _TUPLE, _TUPLE_1, _TUPLE_2, _NO_TUPLE = 0x28, 0x74, 0x85, 0x86, 0x29
_DICT, _FILL = 0x7D, 0x75
_CALL, _NEW, _BUILD, _PERSISTENT = 0x52, 0x81, 0x62, 0x51
_STOP: Final = 0x2E
# what mostly follows, of protocol 4: remembered, and the beginning of an object's state
_STATE: Final = b"\x94}\x94("
_CALLED: Final = b"\x94R\x94"  # remembered, called, and remembered


def run(
    machine: Any,
    steps: Iterable[None],
    table: Sequence[Callable[[Any], object] | None],
    mark: object,
) -> Any:
    """Carry out operations until one says that the pickle ends: what is on top of the stack then.

    Args:
        machine: a PickleMachine.
        steps: one for each operation that may be carried out; a few that follow on each other
            count as one.
        table: what a byte stands for, and is not written out here.
        mark: what stands for the beginning of a list of items.

    Raises:
        UnpicklingError, IndexError, ...: as `PickleMachine.load` says.
    """
    data, stack, memo, nested = machine.data, machine.stack, machine.memo, machine.nested
    push, pop, at = stack.append, stack.pop, machine.at
    made: Any
    state: Any
    try:
        for _ in steps:
            code = data[at]
            at += 1
            if code == _GET:
                push(memo[data[at]])
                at += 1
            elif code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _INT_1:
                push(data[at])
                at += 1
            elif code == _LONG_GET:
                push(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == _LONG_PUT:
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif code == _START:
                if data[at] == _START and (end := machine.known(at - 1)):
                    at = end
                else:
                    push(mark)
            elif code == _TUPLE_2:
                second, first = pop(), pop()
                if type(first) is tuple or type(second) is tuple:
                    push(machine.tuple_of([first, second]))
                else:
                    made = (first, second)
                    if nested:
                        nested.pop(id(made), None)
                    push(made)
                if data[at] == _MEMOIZE:
                    at += 1
                    memo[len(memo)] = stack[-1]
            elif code == _NO_TUPLE:
                if data[at] != _NEW:
                    push(())
                    continue
                at += 1
                push(machine.make(pop(), (), new=True))
                if data[at : at + 4] == _STATE:
                    at += 4
                    memo[len(memo)] = stack[-1]
                    state = {}
                    memo[len(memo)] = state
                    push(state)
                    push(mark)
            elif code == _TUPLE_1:
                arguments = machine.tuple_of([pop()])
                if data[at : at + 3] != _CALLED:
                    push(arguments)
                    continue
                at += 3
                memo[len(memo)] = arguments
                made = machine.make(pop(), arguments, new=False)
                memo[len(memo)] = made
                push(made)
            elif code == _CALL:
                arguments, what = pop(), pop()
                if type(arguments) is not tuple:
                    raise UnpicklingError("arguments that are no tuple")
                push(machine.make(what, arguments, new=False))
            elif code == _BUILD:
                state = pop()
                machine.build(stack[-1], state)
            elif code == _FILL:
                machine.fill(machine.to_mark())
                if data[at] == _BUILD:
                    at += 1
                    state = pop()
                    machine.build(stack[-1], state)
            elif code == _DICT:
                push({})
            elif code == _FALSE:
                push(False)
            elif code == _PUT:
                memo[data[at]] = stack[-1]
                at += 1
            elif code == _SHORT_TEXT:
                end = at + 1 + data[at]
                if end > len(data):
                    raise EOFError("a text that is cut")
                push(data[at + 1 : end].decode("utf-8", "surrogatepass"))
                at = end
            elif code == _TEXT:
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                if end > len(data):
                    raise EOFError("a text that is cut")
                push(data[at + 4 : end].decode("utf-8", "surrogatepass"))
                at = end
            elif code == _TUPLE:
                push(machine.tuple_of(machine.to_mark()))
            elif code == _INT_2:
                push(data[at] | data[at + 1] << 8)
                at += 2
            elif code == _PERSISTENT:
                push(machine.persistent_load(pop()))
            elif code == _STOP:
                return pop()
            else:
                action = table[code]
                if action is None:
                    raise UnpicklingError(f"no operation of a pickle: 0x{code:02x}")
                machine.at = at
                action(machine)
                at = machine.at
    finally:
        machine.at = at
    raise UnpicklingError(f"more than {machine.most:,} operations")
