"""Which tests run on every kind of worker, and which do not, with the reason: one table for the contract and the promises.

A test file that is named in ``BOTH`` runs on both kinds; a test of it that means one wall alone is listed in ``NATIVE_ONLY``.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping

import pytest

from engine.errors import EngineError
from tests import machine

KINDS = ("native", "wasm")
BOTH = (
    "contract/test_background.py",
    "contract/test_cancelling.py",
    "contract/test_concluding.py",
    "contract/test_deadlines.py",
    "contract/test_endings.py",
    "contract/test_exceptions.py",
    "contract/test_first.py",
    "contract/test_http_hostcall.py",
    "contract/test_loading.py",
    "contract/test_modes.py",
    "contract/test_namespaces.py",
    "contract/test_nesting.py",
    "contract/test_pool.py",
    "contract/test_receipts.py",
    "contract/test_refusals.py",
    "contract/test_streams.py",
    "contract/test_tenants.py",
    "contract/test_values.py",
    "security/test_canaries.py",
    "security/test_promise_bounded.py",
    "security/test_promise_checked.py",
    "security/test_promise_clean.py",
    "security/test_promise_ends.py",
    "security/test_promise_environment.py",
    "security/test_promise_fresh.py",
    "security/test_promise_identity.py",
    "security/test_promise_named.py",
    "security/test_promise_network.py",
    "security/test_promise_outside.py",
    "security/test_promise_view.py",
)
_NO_SCRATCH = "a WebAssembly worker has no place to write to: security/test_wasm_promises.py tries to"
_NO_THREADS = "a WebAssembly worker has no threads"
_NO_CALLS = "means kernel calls, which no guest can make; security/test_wasm_child.py makes them from where one would that broke out"
_NO_DESCRIPTORS = "means descriptors, of which a guest has none: security/test_wasm_promises.py and test_wasm_child.py look at them"
_NO_FOLDER = "a WebAssembly image shows no folder of its own"
_OTHERWISE = "asks what a guest has not, a C library or signals and files: security/test_wasm_promises.py asks what it has"
_HOST_MODE = "without a wall there is the native kind alone"
# a class, a test, or one case of it (the parameters without the kind) -> why it means the native wall alone
NATIVE_ONLY: Mapping[str, str] = {
    "contract/test_cancelling.py::test_a_running_tool_is_ended[import signal\\nsignal.raise_signal(signal.SIGSTOP)]": _NO_CALLS,
    "contract/test_concluding.py::test_what_would_not_end_is_told_to_who_asks_and_who_closes": _NO_THREADS,
    "contract/test_http_hostcall.py::test_threads_take_turns": _NO_THREADS,
    "contract/test_modes.py::TestHost::test_the_receipt_says_that_there_was_no_wall": _HOST_MODE,
    "contract/test_modes.py::TestHost::test_what_the_tool_left_running_is_ended_with_the_call": _HOST_MODE,
    "contract/test_receipts.py::TestFacts::test_loosenings_are_listed_by_name": _HOST_MODE,
    "contract/test_values.py::TestShapes::test_every_kind_of_function_is_a_tool[waiting-3-partials1]": _NO_THREADS,
    "security/test_promise_bounded.py::test_cpu_time[by threads]": _NO_THREADS,
    "security/test_promise_bounded.py::test_memory[by mappings]": _NO_CALLS,
    "security/test_promise_bounded.py::test_files": _NO_SCRATCH,
    "security/test_promise_bounded.py::test_threads_and_descriptors": "a WebAssembly worker has neither threads nor descriptors",
    "security/test_promise_bounded.py::test_processes": "no guest has a call that makes one: security/test_wasm_promises.py asks for them",
    "security/test_promise_checked.py::test_an_answer_to_a_call_that_was_not_made_yet_is_refused": _NO_THREADS,
    "security/test_promise_checked.py::test_the_same_call_without_the_thread_is_answered": _NO_THREADS,
    "security/test_promise_clean.py::test_the_next_call_finds_an_empty_scratch_folder": _NO_SCRATCH,
    "security/test_promise_clean.py::test_limits_that_were_inherited_tighter_are_never_raised": _NO_DESCRIPTORS,
    "security/test_promise_clean.py::test_the_same_tool_gets_the_whole_limit_otherwise": _NO_DESCRIPTORS,
    "security/test_promise_ends.py::test_a_flood_of_messages_holds_neither_deadlines_nor_anybody_else[ask]": _NO_THREADS,
    "security/test_promise_ends.py::test_a_tool_cannot_outlive_a_killed_supervisor": "no guest can ignore or send a signal",
    "security/test_promise_environment.py::test_a_tool_finds_a_fixed_list_of_names": _OTHERWISE,
    "security/test_promise_environment.py::test_nothing_that_loads_code_has_an_effect": _NO_CALLS,
    "security/test_promise_fresh.py::test_a_call_finds_nothing_that_another_left": _OTHERWISE,
    "security/test_promise_fresh.py::test_a_thread_does_not_outlive_its_call": _NO_THREADS,
    "security/test_promise_fresh.py::test_scratch_is_empty_again": _NO_SCRATCH,
    "security/test_promise_fresh.py::test_what_crashed_or_ran_over_leaves_nothing_either": _NO_SCRATCH,
    "security/test_promise_fresh.py::test_no_way_of_talking_to_a_parallel_call": _NO_CALLS,
    "security/test_promise_identity.py::test_nobody_can_become_somebody": _NO_CALLS,
    "security/test_promise_identity.py::test_a_module_at_import_is_locked_as_well": _NO_CALLS,
    "security/test_promise_identity.py::test_limits_are_those_of_the_policy_and_stay": _NO_CALLS,
    "security/test_promise_identity.py::test_four_descriptors_and_no_other": _NO_DESCRIPTORS,
    "security/test_promise_identity.py::test_no_process_of_a_jail_holds_a_file_of_the_host": _NO_DESCRIPTORS,
    "security/test_promise_identity.py::test_no_descriptor_goes_through_the_channel": _NO_DESCRIPTORS,
    "security/test_promise_identity.py::test_no_folder_is_open_to_climb_from": _NO_DESCRIPTORS,
    "security/test_promise_identity.py::test_who_waits_to_be_ordered_holds_its_own_end_alone": _NO_DESCRIPTORS,
    "security/test_promise_view.py::test_the_hosts_installed_packages_are_not_beside_the_standard_library": _NO_FOLDER,
    "security/test_promise_view.py::test_no_other_opening_call_leads_out": _NO_CALLS,
    "security/test_promise_view.py::test_no_link_can_be_made": _NO_SCRATCH,
    "security/test_promise_view.py::test_no_file_gets_rights_beyond_its_own": _NO_SCRATCH,
    "security/test_promise_view.py::test_a_library_mapped_writable_stays_as_it_is_on_the_host": _NO_CALLS,
    "security/test_promise_view.py::test_a_file_left_in_scratch_is_never_read_by_the_supervisor": _NO_SCRATCH,
}
_JUDGED_HERE = "what is refused is refused in the engine's process, before any kind of worker is asked"
_CHECKED_HERE = "what a worker sent is judged in the engine's process, which does not know the kind; the first case shows that it is"
_NO_SOCKETS = "no guest has a socket, wherever it would lead: security/test_wasm_promises.py asks for each kind"
_SAME_GUEST = "the guest's program is the same one; what its interpreter says otherwise, tests/agreement compares case by case"
# a class or a test -> why the first case of each of its tests says all of it for the other kinds
ONE_CASE: Mapping[str, str] = {
    "contract/test_endings.py::test_a_tool_that_writes_what_no_guest_writes": _CHECKED_HERE,
    "contract/test_endings.py::test_the_first_answer_is_the_only_one": _CHECKED_HERE,
    "contract/test_exceptions.py::test_an_exception_is_told_in_one_clean_line": _SAME_GUEST,
    "contract/test_loading.py::TestShapes::test_a_layer_for_another_python_is_not_imported": _JUDGED_HERE,
    "contract/test_receipts.py::TestAlways::test_each_end_is_on_a_receipt": _CHECKED_HERE,
    "contract/test_refusals.py::TestPolicyFiles": _JUDGED_HERE,
    "contract/test_refusals.py::TestRequests": _JUDGED_HERE,
    "contract/test_refusals.py::TestSources::test_a_bad_declaration_is_refused_with_its_own_lines": _SAME_GUEST,
    "contract/test_values.py::TestResults::test_depth_past_its_bound_is_refused": _CHECKED_HERE,
    "contract/test_values.py::TestResults::test_no_number_slips_past_a_maximum": _CHECKED_HERE,
    "contract/test_values.py::TestStreams": _CHECKED_HERE,
    "security/test_canaries.py::test_the_search_finds_what_is_there": "the control of the search itself, in a process that is no worker",
    "security/test_promise_bounded.py::test_a_limit_that_is_none_is_refused": _JUDGED_HERE,
    "security/test_promise_bounded.py::test_a_timeout_that_is_none_is_refused": _JUDGED_HERE,
    "security/test_promise_bounded.py::test_events": _CHECKED_HERE,
    "security/test_promise_bounded.py::test_output": _CHECKED_HERE,
    "security/test_promise_bounded.py::test_output_that_is_no_text": _CHECKED_HERE,
    "security/test_promise_bounded.py::test_result_size": _CHECKED_HERE,
    "security/test_promise_checked.py::test_a_log_record_with_forged_fields": _CHECKED_HERE,
    "security/test_promise_checked.py::test_a_partial_that_breaks_its_schema_after_good_ones": _CHECKED_HERE,
    "security/test_promise_checked.py::test_a_result_against_its_schema": _CHECKED_HERE,
    "security/test_promise_checked.py::test_declarations_are_checked_like_all_that_a_worker_sends": _CHECKED_HERE,
    "security/test_promise_checked.py::test_depth_without_end": _CHECKED_HERE,
    "security/test_promise_checked.py::test_what_is_data_arrives_as_it_is": _SAME_GUEST,
    "security/test_promise_checked.py::test_what_is_no_data_is_named_by_its_place": _SAME_GUEST,
    "security/test_promise_ends.py::test_a_tool_cannot_name_its_own_reason": _CHECKED_HERE,
    "security/test_promise_named.py::TestForged::test_a_tool_cannot_change_its_receipt": _CHECKED_HERE,
    "security/test_promise_network.py::TestAsked": _JUDGED_HERE,
    "security/test_promise_network.py::test_no_metadata_service_is_asked": _NO_SOCKETS,
    "security/test_promise_network.py::test_no_socket_of_any_kind_can_be_had": _NO_SOCKETS,
    "security/test_promise_network.py::test_nothing_reaches_a_listener_of_the_host": _NO_SOCKETS,
}


def both(nodeid: str) -> bool:
    """Whether the test of that name runs on both kinds."""
    name = nodeid.removeprefix("tests/").partition("[")[0]
    return name.partition("::")[0] in BOTH and not _listed(name, NATIVE_ONLY)


def _listed(name: str, table: Mapping[str, str]) -> bool:
    return any(name == listed or name.startswith(f"{listed}::") for listed in table)


def left_out(nodeids: Iterable[str]) -> Iterator[str]:
    """Those names of cases that the tables leave out."""
    seen: set[str] = set()
    for nodeid in nodeids:
        name, _, case = nodeid.removeprefix("tests/").partition("[")
        kind, _, rest = case.removesuffix("]").partition("-")
        if kind not in KINDS or kind == "native" or not both(nodeid):
            continue
        if f"{name}[{rest}]" in NATIVE_ONLY or (_listed(name, ONE_CASE) and name in seen):
            yield nodeid
        seen.add(name)


@functools.cache
def _image() -> EngineError | None:
    found = machine.image()
    return found if isinstance(found, EngineError) else None


def require_image() -> None:
    """Skip, saying unproven, where the image of this checkout is not built. Continuous integration is no such place: there it fails."""
    if (problem := _image()) is not None:
        told = f"unproven: WebAssembly workers: {problem}"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
