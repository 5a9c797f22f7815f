package steady_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/sim/steady"
)

// chance is a program that shows what Go leaves to chance.
const chance = `package chance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func Test(t *testing.T) {
	a, b := make(chan int), make(chan int)
	close(a)
	close(b)
	for range 100 {
		select {
		case <-a:
			fmt.Print("a")
		case <-b:
			fmt.Print("b")
		}
	}
	synctest.Test(t, func(t *testing.T) {
		m, small := make(map[string]int), make(map[int]int)
		for i := range 100 {
			m[fmt.Sprint(i)] = i
			small[i%8] = i
		}
		for k := range m {
			fmt.Print(k, " ")
		}
		for k := range small {
			fmt.Print(k, " ")
		}
		fmt.Print(rand.Uint64(), " ")
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				time.Sleep(time.Second)
				fmt.Print(" ", i)
			})
		}
		all.Wait()
	})
}
`

// A steady program does the same each time. Without the patches the same program does not.
func TestBuild(t *testing.T) {
	programs.OnlyInAll(t, "of the build of a steady program") // which compiles the standard library once more
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module chance\n\ngo 1.26\n", "chance_test.go": chance} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	program := filepath.Join(dir, "steady.test")
	if err := steady.Build(t.Context(), ".", program); err != nil {
		t.Fatal(err)
	}
	said := func(env []string, name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out[:min(len(out), 700)]) // the rest is its duration
	}
	first := said(steady.Env(), program)
	for range 5 {
		if again := said(steady.Env(), program); again != first {
			t.Errorf("a steady program said\n%s\nand then\n%s", first, again)
		}
	}
	if a, b := said(os.Environ(), "go", "test", "-count=1", "-v"),
		said(os.Environ(), "go", "test", "-count=1", "-v"); a == b {
		t.Errorf("twice the same without: this test shows nothing: %s", a)
	}
}
