package diagnose

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

// certificates reads the files of certificates that settings name: those whose names end in cert
// or ca. The files are read anew, because they are replaced while the process runs.
func certificates(settings []*marchv1.Setting) []*marchv1.CertificateStatus {
	var list []*marchv1.CertificateStatus
	for _, s := range settings {
		last := s.GetName()[strings.LastIndexByte(s.GetName(), '-')+1:]
		if s.GetValue() == "" || last != "cert" && last != "ca" {
			continue
		}
		c := &marchv1.CertificateStatus{Setting: s.GetName(), Path: s.GetValue()}
		if first, err := firstToEnd(s.GetValue()); err != nil {
			c.Error = err.Error()
		} else {
			c.Subject, c.Ends = first.Subject.String(), timestamppb.New(first.NotAfter)
		}
		list = append(list, c)
	}
	return list
}

// firstToEnd returns the certificate of a file (PEM) that ends first.
func firstToEnd(path string) (first *x509.Certificate, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxCertificates))
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	if first == nil {
		return nil, errors.New("it has no certificate (PEM)")
	}
	return first, nil
}
