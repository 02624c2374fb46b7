// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

// The flags make the objects reproducible: kernel.h stands in for the system's headers, and bpf2go
// strips debug information. -mcpu=v3 gives atomics with a result (Linux 5.12).
//
//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-16 -strip llvm-strip-16 -tags linux -target bpfel,bpfeb -cflags "-O2 -mcpu=v3 -Wall -Wextra -Wno-sign-compare -Wno-unused-parameter -Werror" aggregate aggregate.c
//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-16 -strip llvm-strip-16 -tags linux -target bpfel,bpfeb -cflags "-O2 -mcpu=v3 -Wall -Wextra -Wno-sign-compare -Wno-unused-parameter -Werror" failures failures.c
//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-16 -strip llvm-strip-16 -tags linux -target bpfel,bpfeb -cflags "-O2 -mcpu=v3 -Wall -Wextra -Wno-sign-compare -Wno-unused-parameter -Werror" feeder feeder.c
