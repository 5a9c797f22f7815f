package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// httpMain is the program http of scripts, so that they need no other client:
//
//	http [-X METHOD] [-H HEADER|@FILE]... [-d NAME=VALUE|NAME@FILE]... [--fail]
//	     [--ca FILE] [--cert FILE --key FILE] [--tls12] URL...
//
// It prints the body of each answer, and to standard error the status and, if the answer has
// one, the address to which it redirects. It ends with 1 if there is no answer, with --fail also
// if its status is 400 or more.
func httpMain() {
	if err := request(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
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
