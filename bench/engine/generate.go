// SPDX-License-Identifier: Apache-2.0

package engine

//go:generate go tool -modfile=../../tools/go.mod bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel,bpfeb -cflags "-O2 -mcpu=v3 -Wall -Wextra -Werror" opposite opposite.c
