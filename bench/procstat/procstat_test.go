package procstat

import (
	"os"
	"runtime"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads Linux's /proc")
	}
	memory, err := Resident(os.Getpid())
	if err != nil || memory < 1<<20 || memory > 1<<32 {
		t.Errorf("resident: %.0f bytes, %v", memory, err)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		spent, err := CPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if spent > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a process that has run for 10 s has used no CPU time")
		}
	}
	if _, err := CPU(-1); err == nil {
		t.Error("no error of a process that is not there")
	}
}
