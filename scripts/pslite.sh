#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Libra's van for a tree of dmlc/ps-lite, which stays as it is: libra_van.so, to be preloaded
# where ps-lite is a shared library, and libra_van.a, for the linker's --wrap where it is a static
# one. It also builds that ps-lite and its test programs, by its CMake, with the system's libzmq and
# protobuf. Nothing is downloaded.
#
# usage: scripts/pslite.sh TREE FOLDER [ZMQ], a tree of zeromq/libzmq for the program with ThreadSanitizer
set -euo pipefail

[ $# -eq 2 ] || [ $# -eq 3 ] || {
	echo "usage: scripts/pslite.sh TREE FOLDER [ZMQ]" >&2
	exit 2
}
die() {
	echo "pslite.sh: $*" >&2
	exit 1
}
[ -n "$1" ] || die "no tree of ps-lite is named: clone github.com/dmlc/ps-lite, then make pslite PSLITE=FOLDER"
[ -f "$1/src/zmq_van.h" ] || die "$1 is no tree of dmlc/ps-lite: it has no src/zmq_van.h"
[ -f "$1/CMakeLists.txt" ] || die "$1 has no CMakeLists.txt: use a ps-lite of 2019 or later"
tree=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
zmq=
if [ -n "${3:-}" ]; then
	[ -f "$3/include/zmq.h" ] || die "$3 is no tree of zeromq/libzmq: it has no include/zmq.h"
	zmq=$(cd "$3" && pwd)
fi
cd "$(dirname "$0")/.."

missing=
for need in cmake:cmake make:make "${CC:-cc}:gcc" "${CXX:-c++}:g++" protoc:protobuf-compiler; do
	command -v "${need%%:*}" >/dev/null || missing="$missing ${need##*:}"
done
for need in zmq.h:libzmq3-dev google/protobuf/message.h:libprotobuf-dev; do
	echo "#include <${need%%:*}>" | ${CXX:-c++} -E -x c++ - >/dev/null 2>&1 || missing="$missing ${need##*:}"
done
[ -z "$missing" ] || die "missing:$missing; as root, apt-get install$missing"

configure() { # kind, flags of CMake
	cmake -S "$tree" -B "$out/$1" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${@:2}" >"$out/$1.log" 2>&1 ||
		die "cmake: see $out/$1.log"
}
compile() { # kind, targets
	cmake --build "$out/$1" --parallel "$(nproc)" --target "${@:2}" >>"$out/$1.log" 2>&1 || die "compiling ps-lite: see $out/$1.log"
}
# Were libzmq not found, ps-lite's CMake would download it.
configure shared -DBUILD_SHARED_LIBS=ON -DFETCHCONTENT_FULLY_DISCONNECTED=ON
programs=(connection simple_app kv_app kv_app_multi_workers kv_app_benchmark)
compile shared "${programs[@]/%/_test}"
configure static -DBUILD_SHARED_LIBS=OFF -DFETCHCONTENT_FULLY_DISCONNECTED=ON
compile static pslite

make -C clients/pslite van O="$out/van" PSLITE="$tree" LIB="$out/shared" >"$out/van.log" 2>&1 || die "compiling the van: see $out/van.log"
cp "$out/van/libra_van.so" "$out/van/libra_van.a" "$out"
for program in "${programs[@]}"; do
	cp "$out/shared/tests/${program}_test" "$out"
done
create=_ZN2ps3Van6CreateERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
"${CXX:-c++}" -std=c++11 -O2 -pthread -I "$tree/include" -o "$out/kv_app_wrapped_test" "$tree/tests/test_kv_app.cc" \
	-Wl,--wrap=$create "$out/libra_van.a" "$out/static/libpslite.a" "$out/libra_van.a" -lzmq -lprotobuf
for program in sums rates; do
	"${CXX:-c++}" -std=c++11 -O2 -Wall -Wextra -Wno-unused-parameter -pthread -isystem "$tree/include" -o "$out/$program" \
		"clients/pslite/test/$program.cc" -L "$out/shared" -Wl,-rpath,"$out/shared" -lpslite
done

# The same program, the van and ps-lite with a sanitizer. ThreadSanitizer has to see how ZeroMQ's threads
# hand memory over, so that is compiled with it, too.
sanitize() { # sanitizer, library of ZeroMQ
	local flags="-O1 -g -fsanitize=$1"
	configure "$1" -DBUILD_SHARED_LIBS=OFF -DFETCHCONTENT_FULLY_DISCONNECTED=ON -DCMAKE_CXX_FLAGS="$flags"
	compile "$1" pslite
	make -C clients/pslite "$out/van-$1/libra_van.a" O="$out/van-$1" PSLITE="$tree" CFLAGS="$flags" >>"$out/van.log" 2>&1 ||
		die "compiling the van: see $out/van.log"
	"${CXX:-c++}" -std=c++11 -O1 -g "-fsanitize=$1" -pthread -isystem "$tree/include" -o "$out/sums-$1" clients/pslite/test/sums.cc \
		-Wl,--wrap=$create "$out/van-$1/libra_van.a" "$out/$1/libpslite.a" "$out/van-$1/libra_van.a" "$2" -lprotobuf
}
sanitize address -lzmq
if [ -n "$zmq" ]; then
	cmake -S "$zmq" -B "$out/zmq" -DBUILD_SHARED=OFF -DZMQ_BUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DENABLE_CURVE=OFF \
		-DENABLE_WS=OFF -DCMAKE_CXX_FLAGS="-O1 -g -fsanitize=thread" >"$out/zmq.log" 2>&1 || die "cmake: see $out/zmq.log"
	cmake --build "$out/zmq" --parallel "$(nproc)" --target libzmq-static >>"$out/zmq.log" 2>&1 ||
		die "compiling ZeroMQ: see $out/zmq.log"
	sanitize thread "$out/zmq/lib/libzmq.a"
fi
echo "pslite.sh: $out has libra_van.so and libra_van.a"
