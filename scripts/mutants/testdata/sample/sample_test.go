package sample

import "testing"

func TestLimit(t *testing.T) {
	if got := Limit(3, 2); got != 2 {
		t.Errorf("Limit(3, 2) = %d", got)
	}
	if got := Limit(1, 2); got != 1 {
		t.Errorf("Limit(1, 2) = %d", got)
	}
}

func TestSteps(t *testing.T) {
	if got := Steps(3); got != 3 {
		t.Errorf("Steps(3) = %d", got)
	}
}

func TestApply(t *testing.T) {
	if got := Apply(map[string]int{}, true); got != 1 {
		t.Errorf("%d keys", got)
	}
}
