// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// freePort returns a TCP port on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// TestTorchOwnHostsPage does what docs/python.md says of PyTorch on one's own hosts, with loopback
// addresses and a rank a host: build, install, describe the job, choose a hot set, start
// everything, train. The ranks end with the same weights, and rows were summed at the switch.
func TestTorchOwnHostsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## PyTorch on your own hosts\n")
	section, _, _ = strings.Cut(section, "\n## ")
	section = strings.NewReplacer("10.77.0.", "127.77.0.", "29400", freePort(t), "IFNAME=host1", "IFNAME=lo",
		"--nproc_per_node 2", "--nproc_per_node 1").Replace(section)
	blocks := map[string][]string{}
	for _, b := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		blocks[b[1]] = append(blocks[b[1]], b[2])
	}
	sh := blocks["sh"]
	if len(sh) != 5 || len(blocks["yaml"]) != 2 || len(blocks["python"]) != 1 {
		t.Fatalf("the section has %d, %d and %d blocks", len(sh), len(blocks["yaml"]), len(blocks["python"]))
	}
	daemons := strings.Split(regexp.MustCompile(`(?m) +#.*$`).ReplaceAllString(strings.TrimSpace(sh[3]), ""), "\n")
	if len(daemons) != 3 || !strings.HasPrefix(sh[0], "make build wheel ") {
		t.Fatalf("the section builds with %s, and starts\n%s", sh[0], sh[3])
	}

	python := torchPython(t)
	wheel, libra := buildWheel(t)
	dir, bin := openDir(t), t.TempDir()
	for name, to := range map[string]string{"libra": libra, "python3": python} {
		if err := os.Symlink(to, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"cluster.yaml": blocks["yaml"][0], "train.py": blocks["python"][0],
		"host1/agent.yaml": blocks["yaml"][1], "host2/agent.yaml": strings.Replace(blocks["yaml"][1], "worker: 1", "worker: 2", 1),
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1")
	install, ranks := sh[1]+"ln -s ../venv host1; ln -s ../venv host2\n", sh[4]
	if os.Getenv(interpreter) != "" { // commands of a venv in another root do not run here
		root, err := filepath.Abs("python")
		if err != nil {
			t.Fatal(err)
		}
		install, ranks = "", strings.Replace(ranks, "venv/bin/python3", "python3", 1)
		env = append(env, "PYTHONPATH="+root, "LIBRA_LIBRARY="+filepath.Join(build(t, plain), "libra.so.1"))
	}
	second := strings.Replace(ranks, "--node_rank 0", "--node_rank 1", 1)
	if !strings.HasPrefix(torchVersion(t), "1.") { // torchrun of Debian's has no libuv, as the page says
		ranks, second = withoutTorchrun(ranks), withoutTorchrun(second)
	}
	script := "cp " + wheel + " .\n" + install + sh[2] + `
for host in host1 host2; do cp cluster.yaml hot.libra train.py $host; done
trap 'kill $(jobs -p); wait' EXIT
` + daemons[0] + " &\n" + daemons[1] + ` &
(cd host1; exec ` + daemons[2] + `) & (cd host2; exec ` + daemons[2] + `) &
until test -S host1/agent.sock && test -S host2/agent.sock; do sleep 0.1; done
(cd host2
` + second + `) & second=$!
(cd host1
` + ranks + `)
wait $second
libra stats --agent host1/agent.sock
`
	cmd := within(t, torchLimit, "bash", "-euc", script)
	cmd.Dir, cmd.Env = dir, env
	out := run(t, cmd)
	sums := regexp.MustCompile(`rank \d of 2: (-?[0-9.]+)`).FindAllStringSubmatch(out, -1)
	if len(sums) != 2 || sums[0][1] != sums[1][1] {
		t.Errorf("the ranks end with %v\n%s", sums, out)
	}
	if !regexp.MustCompile(`hot pairs sent +[1-9]`).MatchString(out) {
		t.Errorf("nothing was summed at the switch:\n%s", out)
	}
}

// withoutTorchrun returns the commands with the variables that torchrun would set, for one rank a
// host.
func withoutTorchrun(commands string) string {
	return regexp.MustCompile(`(\S*python3) -m torch\.distributed\.run .*--node_rank (\d) --master_addr (\S+) --master_port (\S+) .*(train\.py)`).
		ReplaceAllString(commands, "USE_LIBUV=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 RANK=$2 MASTER_ADDR=$3 MASTER_PORT=$4 $1 $5")
}
