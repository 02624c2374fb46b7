// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// The example that trains on digits ends with a line for each hook. Its ranks are alike.
func TestTorchCodecExample(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	const n = 120
	images, labels := []byte{0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, 28, 0, 0, 0, 28}, []byte{0, 0, 8, 1, 0, 0, 0, n}
	for i := range n { // a digit is a stripe of its own
		image := make([]byte, 28*28)
		copy(image[28*2*(i%10):], bytes.Repeat([]byte{255}, 56))
		images, labels = append(images, image...), append(labels, byte(i%10))
	}
	for name, data := range map[string][]byte{"images": images, "labels": labels} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hooks := "none fp16 codec:10 codec:6:0 powersgd:1"
	if strings.HasPrefix(torchVersion(t), "2.14.") { // whose gloo, as Debian builds it, refuses float16
		hooks = strings.Replace(hooks, "fp16 ", "", 1)
	}
	out := ranksOf(t, 2, nil, "python/examples/mnist.py", "--images", filepath.Join(dir, "images"), "--labels", filepath.Join(dir, "labels"),
		"--train", "80", "--batch", "8", "--epochs", "2", "--hooks", hooks, "--json")[0]
	var seen []string
	for _, line := range strings.Split(out, "\n") {
		var result struct {
			Hook       string  `json:"hook"`
			MS         float64 `json:"exchange_ms"`
			Accuracy   []float64
			Replicas   bool     `json:"replicas_equal"`
			MegaOfStep *float64 `json:"mb_step"` // null where /proc is not mounted
		}
		if !strings.HasPrefix(line, "{") {
			continue
		}
		if err := json.Unmarshal([]byte(line), &result); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, result.Hook)
		if !result.Replicas || result.MS <= 0 || (result.MegaOfStep == nil && os.Getenv(interpreter) == "") || (result.MegaOfStep != nil && *result.MegaOfStep <= 0) || len(result.Accuracy) != 2 {
			t.Errorf("%+v", result)
		}
	}
	if strings.Join(seen, " ") != hooks {
		t.Errorf("printed %s", out)
	}
}
