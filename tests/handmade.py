"""A guest written by hand: it has the exports of the project's world, and does in turn what each frame's first byte says.

With it the process around a guest is tested in milliseconds, and without CPython's image.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import wasmtime
from wasmtime.component import Component

from wasm import configuration

# what a frame's first byte asks for; what follows it is given back by ``ECHO`` and the outputs
ECHO, OUT, ERR, UNREACHABLE, DIVIDE, STRAY, RECURSE, LOOP = (bytes((code,)) for code in b"eo2udmrl")
GROW, ODD_KIND, ODD_REQUEST, POLL, END, COMPLAIN, EXIT, RANDOM, CLOCK, SLEEP, FLOOD, NOT_LATIN, GROW_TABLE = (
    bytes((code,)) for code in b"gkqpxbERTSfnt"
)

_TEXT = """
(component
  (import "stockade:worker/host" (instance $host
    (export "emit" (func (param "kind" u8) (param "data" string)))
    (export "call" (func (param "request" string) (result (result string (error string)))))))
  (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
  (import "wasi:random/random@0.2.0" (instance $random (export "get-random-u64" (func (result u64)))))
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $pollable (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $outer))
    (export "pollable" (type $pollable (eq $outer)))
    (export "now" (func (result u64)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))

  (core module $memory_module
    (memory (export "memory") 2)
    (global $next (mut i32) (i32.const 4096))
    (func (export "realloc") (param $old i32) (param $had i32) (param $align i32) (param $size i32) (result i32)
      (local $at i32) (local $end i32)
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (local.set $end (i32.add (local.get $at) (local.get $size)))
      (if (i32.gt_u (local.get $end) (i32.shl (memory.size) (i32.const 16)))
        (then (if (i32.eq (i32.const -1) (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $size) (i32.const 16)))))
          (then unreachable))))
      (global.set $next (local.get $end))
      (local.get $at))
    (func (export "forget") (global.set $next (i32.const 4096))))
  (core instance $memory (instantiate $memory_module))
  (alias core export $memory "memory" (core memory $m))
  (alias core export $memory "realloc" (core func $realloc))

  (core func $emit (canon lower (func $host "emit") (memory $m) (realloc $realloc)))
  (core func $call (canon lower (func $host "call") (memory $m) (realloc $realloc)))
  (core func $leave (canon lower (func $exit "exit")))
  (core func $number (canon lower (func $random "get-random-u64")))
  (core func $now (canon lower (func $clock "now")))
  (core func $after (canon lower (func $clock "subscribe-duration")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core instance $imports
    (export "emit" (func $emit)) (export "call" (func $call)) (export "leave" (func $leave)) (export "number" (func $number))
    (export "now" (func $now)) (export "after" (func $after)) (export "block" (func $block)))

  (core module $guest_module
    (import "memory" "memory" (memory 2))
    (import "memory" "forget" (func $forget))
    (import "host" "emit" (func $emit (param i32 i32 i32)))
    (import "host" "call" (func $call (param i32 i32 i32)))
    (import "host" "leave" (func $leave (param i32)))
    (import "host" "number" (func $number (result i64)))
    (import "host" "now" (func $now (result i64)))
    (import "host" "after" (func $after (param i64) (result i32)))
    (import "host" "block" (func $block (param i32)))
    (data (i32.const 16) "next") (data (i32.const 24) "poll") (data (i32.const 32) "what") (data (i32.const 40) "not today")
    (data (i32.const 64) "full") (data (i32.const 72) "closed") (data (i32.const 80) "\\e2\\82\\ac")
    (table $functions 1 funcref)
    (func $recurse (param i64) (result i64) (i64.add (i64.const 1) (call $recurse (i64.add (local.get 0) (i64.const 1)))))
    (func $tell (param $value i64) (local $digit i32)
      (loop $digits
        (i32.store8 (i32.add (i32.const 512) (local.get $digit))
          (i32.add (i32.const 65) (i32.wrap_i64 (i64.and (local.get $value) (i64.const 15)))))
        (local.set $value (i64.shr_u (local.get $value) (i64.const 4)))
        (local.set $digit (i32.add (local.get $digit) (i32.const 1)))
        (br_if $digits (i32.lt_u (local.get $digit) (i32.const 16))))
      (call $emit (i32.const 3) (i32.const 512) (i32.const 16)))
    (func (export "load") (param i32 i32) (result i32)
      (i64.store (i32.const 256) (i64.const 0)) (i32.const 256))
    (func (export "call") (param i32 i32) (result i32)
      (local $code i32) (local $at i32) (local $size i32)
      (i64.store (i32.const 256) (i64.const 0))
      (loop $again
        (call $forget)
        (call $call (i32.const 16) (i32.const 4) (i32.const 128))
        (if (i32.load8_u (i32.const 128)) (then
          (call $emit (i32.const 2) (i32.const 72) (i32.const 6)) (return (i32.const 256))))
        (local.set $at (i32.load (i32.const 132)))
        (local.set $code (i32.load8_u (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $size (i32.sub (i32.load (i32.const 136)) (i32.const 1)))
        (if (i32.eq (local.get $code) (i32.const 101)) (then (call $emit (i32.const 3) (local.get $at) (local.get $size))))
        (if (i32.eq (local.get $code) (i32.const 111)) (then (call $emit (i32.const 1) (local.get $at) (local.get $size))))
        (if (i32.eq (local.get $code) (i32.const 50)) (then (call $emit (i32.const 2) (local.get $at) (local.get $size))))
        (if (i32.eq (local.get $code) (i32.const 117)) (then unreachable))
        (if (i32.eq (local.get $code) (i32.const 100)) (then (drop (i32.div_u (i32.const 1) (i32.load (i32.const 260))))))
        (if (i32.eq (local.get $code) (i32.const 109)) (then (drop (i32.load (i32.const 0x7fffffff)))))
        (if (i32.eq (local.get $code) (i32.const 114)) (then (drop (call $recurse (i64.const 0)))))
        (if (i32.eq (local.get $code) (i32.const 108)) (then (loop $forever (br $forever))))
        (if (i32.eq (local.get $code) (i32.const 103)) (then
          (loop $more
            (local.set $size (memory.grow (i32.const 16)))
            (if (i32.ne (local.get $size) (i32.const -1)) (then
              (i32.store8 (i32.shl (local.get $size) (i32.const 16)) (i32.const 1))
              (br $more))))
          (call $tell (i64.extend_i32_u (memory.size)))))
        (if (i32.eq (local.get $code) (i32.const 116)) (then
          (loop $more (br_if $more (i32.ne (i32.const -1) (table.grow $functions (ref.null func) (i32.const 1000)))))
          (call $tell (i64.extend_i32_u (table.size $functions)))))
        (if (i32.eq (local.get $code) (i32.const 107)) (then (call $emit (i32.const 9) (i32.const 16) (i32.const 4))))
        (if (i32.eq (local.get $code) (i32.const 110)) (then (call $emit (i32.const 1) (i32.const 80) (i32.const 3))))
        (if (i32.eq (local.get $code) (i32.const 113)) (then (call $call (i32.const 32) (i32.const 4) (i32.const 128))))
        (if (i32.eq (local.get $code) (i32.const 112)) (then
          (call $call (i32.const 24) (i32.const 4) (i32.const 128))
          (call $tell (i64.extend_i32_u (i32.load (i32.const 136))))))
        (if (i32.eq (local.get $code) (i32.const 120)) (then (return (i32.const 256))))
        (if (i32.eq (local.get $code) (i32.const 98)) (then
          (i32.store (i32.const 256) (i32.const 40)) (i32.store (i32.const 260) (i32.const 9)) (return (i32.const 256))))
        (if (i32.eq (local.get $code) (i32.const 69)) (then (call $leave (i32.const 1))))
        (if (i32.eq (local.get $code) (i32.const 82)) (then (call $tell (call $number))))
        (if (i32.eq (local.get $code) (i32.const 84)) (then (call $tell (call $now))))
        (if (i32.eq (local.get $code) (i32.const 83)) (then
          (call $block (call $after (i64.mul (i64.const 1000000) (i64.load32_u (local.get $at)))))
          (call $emit (i32.const 3) (i32.const 64) (i32.const 4))))
        (if (i32.eq (local.get $code) (i32.const 102)) (then
          (loop $flood (call $emit (i32.const 1) (i32.const 1024) (i32.const 65536)) (br $flood))))
        (br $again))
      (unreachable)))
  (core instance $guest (instantiate $guest_module (with "memory" (instance $memory)) (with "host" (instance $imports))))
  (func (export "load") (param "request" string) (result string)
    (canon lift (core func $guest "load") (memory $m) (realloc $realloc)))
  (func (export "call") (param "request" string) (result string)
    (canon lift (core func $guest "call") (memory $m) (realloc $realloc))))
"""


@functools.cache
def compiled() -> Path:
    """The guest, compiled once a run and removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="handmade-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = folder / "guest.cwasm"
    place.write_bytes(Component(wasmtime.Engine(configuration.make()), _TEXT).serialize())
    return place


def number_of(told: bytes) -> int:
    """The number that the guest told in sixteen letters, lowest first."""
    return sum((letter - 65) << 4 * place for place, letter in enumerate(told))
