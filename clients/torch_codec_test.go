// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// ranksOf runs a Python program in processes that find each other as those of torchrun do, without
// agent, cluster or libra run, and returns what they print.
func ranksOf(t *testing.T, ranks int, variables []string, program ...string) []string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "LIBRA_LIBRARY="+filepath.Join(build(t, plain), "libra.so.1"), "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONFAULTHANDLER=1", "OMP_NUM_THREADS=1", "USE_LIBUV=0", // which Debian's PyTorch 2 was built without
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port), "WORLD_SIZE="+strconv.Itoa(ranks))
	outs, errs := make([]string, ranks), make([]error, ranks)
	var all sync.WaitGroup
	for i := range ranks {
		cmd := within(t, torchLimit, torchPython(t), program...)
		cmd.Env = append(append(env[:len(env):len(env)], variables...), fmt.Sprintf("RANK=%d", i))
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			outs[i], errs[i] = string(out), err
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v\n%s", i, err, outs[i])
		}
	}
	return outs
}

// TestTorchCodec runs the tests of the hook that codes gradients, at the end of which a rank ends
// before the others, once that which keeps the store.
func TestTorchCodec(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ ranks, dies int }{{2, 1}, {4, 0}} {
		t.Run(fmt.Sprintf("%d ranks", test.ranks), func(t *testing.T) {
			ranksOf(t, test.ranks, []string{fmt.Sprintf("DIES=%d", test.dies)}, "python/test/torch_codec.py")
		})
	}
}
