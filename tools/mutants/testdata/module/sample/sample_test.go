package sample

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLimit(t *testing.T) {
	if got := Limit(3, 2); got != 2 {
		t.Errorf("Limit(3, 2) = %d", got)
	}
	if got := Limit(1, 2); got != 1 {
		t.Errorf("Limit(1, 2) = %d", got)
	}
}

func TestSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		if got := Steps(n); got != n {
			t.Fatalf("Steps(%d) = %d", n, got)
		}
	})
}

func TestApply(t *testing.T) {
	if got := Apply(map[string]int{}, true); got != 1 {
		t.Errorf("%d keys", got)
	}
}

func TestTwice(t *testing.T) {
	if got := Twice(2); got != 4 {
		t.Errorf("Twice(2) = %d", got)
	}
}
