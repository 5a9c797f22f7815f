package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// rewriting reports whether tests write the expected output instead of comparing it. The flag
// is that of package datadriven.
func rewriting() bool { return flag.Lookup("rewrite").Value.String() == "true" }

// etcdProgram is the name of etcd's program. It is not etcd: a script's command of that name
// starts one.
const etcdProgram = "etcd-program"

// TestMain makes this test program march or etcd itself if it is called by that name. So the
// tests run real processes, under the race detector too.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "march" { // the tests
		for _, setting := range os.Environ() {
			if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "MARCH_") {
				_ = os.Unsetenv(name)
			}
		}
		if os.Getenv("GORACE") == "" {
			_ = os.Setenv("GORACE", "atexit_sleep_ms=20") // not 1 s at the end of each process
		}
	}
	testscript.Main(withState{m}, map[string]func(){"march": main, runnerProgram: runnerMain,
		"http": func() { os.Exit(httpClient(os.Args[1:])) }, etcdProgram: func() { etcdmain.Main(os.Args) }})
}

// withState gives tests a directory of their own for journals.
type withState struct{ m *testing.M }

// Run implements testscript.TestingM.
func (w withState) Run() int {
	dir, err := os.MkdirTemp("", "march-state-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	_ = os.Setenv("XDG_STATE_HOME", dir)
	_ = os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")) // not the developer's own contexts
	// Parallel tests wait for their processes more than they work. So this many run at
	// once, however few processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	defer endRunners()
	return w.m.Run()
}

// httpClient is the program http of scripts, so that they need no other client:
//
//	http [-X METHOD] [-H HEADER|@FILE]... [-d NAME=VALUE|NAME@FILE]... [--fail]
//	     [--ca FILE] [--cert FILE --key FILE] [--tls12] URL...
//
// It prints the body of each answer, and to standard error the status and, if the answer has
// one, the address to which it redirects. It ends with 1 if there is no answer, with --fail also
// if its status is 400 or more.
func httpClient(args []string) int {
	if err := request(args); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "http:", err)
		return 1
	}
	return 0
}

func request(args []string) error {
	flags := pflag.NewFlagSet("http", pflag.ContinueOnError)
	method := flags.StringP("request", "X", "", "")
	headers := flags.StringArrayP("header", "H", nil, "")
	data := flags.StringArrayP("data", "d", nil, "")
	fail := flags.Bool("fail", false, "")
	ca, cert, key := flags.String("ca", "", ""), flags.String("cert", "", ""), flags.String("key", "", "")
	tls12 := flags.Bool("tls12", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config := &tls.Config{}
	if *tls12 {
		config.MaxVersion = tls.VersionTLS12
	}
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			return err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	form := url.Values{}
	for _, pair := range *data {
		name, value, plain := strings.Cut(pair, "=")
		if !plain {
			var file string
			name, file, _ = strings.Cut(pair, "@")
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			value = string(content)
		}
		form.Add(name, value)
	}
	for _, address := range flags.Args() {
		r, err := http.NewRequest(*method, address, strings.NewReader(form.Encode()))
		if err != nil {
			return err
		}
		if len(form) > 0 {
			r.Method = http.MethodPost
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for _, header := range *headers {
			if file, ok := strings.CutPrefix(header, "@"); ok {
				content, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				header = string(content)
			}
			name, value, _ := strings.Cut(header, ": ")
			if r.Header.Set(name, value); name == "Host" {
				r.Host = value
			}
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, answer.Body)
		_ = answer.Body.Close()
		_, _ = fmt.Fprintln(os.Stderr, answer.Status, answer.Header.Get("Location"))
		if err != nil {
			return err
		}
		if *fail && answer.StatusCode >= http.StatusBadRequest {
			return errors.New("failed")
		}
	}
	return nil
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	return (&common{stdout: stdout, stderr: stderr, commands: (*common).root}).root()
}
