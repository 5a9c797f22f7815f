package problem

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/smallfile"
)

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

type certificate struct {
	*marchv1.CertificateStatus
	begins time.Time // of the certificate that ends first
}

// certificates reads the files of certificates that settings name: those whose names end in cert
// or ca. The files are read anew, because they are replaced while the process runs.
func certificates(settings []*marchv1.Setting) (list []certificate) {
	for _, s := range settings {
		last := s.GetName()[strings.LastIndexByte(s.GetName(), '-')+1:]
		if s.GetValue() == "" || last != "cert" && last != "ca" {
			continue
		}
		c := certificate{CertificateStatus: &marchv1.CertificateStatus{Setting: s.GetName(), Path: s.GetValue()}}
		if first, err := firstToEnd(s.GetName(), s.GetValue()); err != nil {
			c.Error = err.Error()
		} else {
			c.Subject, c.Ends, c.begins = first.Subject.String(), timestamppb.New(first.NotAfter), first.NotBefore
		}
		list = append(list, c)
	}
	return list
}

// readEvery is how often Certificates reads the files.
const readEvery = time.Minute

// known has certificates as they were read last.
type known struct {
	mu struct {
		sync.Mutex
		at   time.Time
		list []certificate
	}
}

// statuses returns certificates as callers get them.
func statuses(list []certificate) []*marchv1.CertificateStatus {
	var all []*marchv1.CertificateStatus
	for _, c := range list {
		all = append(all, c.CertificateStatus)
	}
	return all
}

// Certificates returns the certificates that can be read, without the paths of their files, as
// they were at most a minute ago. A nil Host has none.
func (s *Host) Certificates() []*marchv1.CertificateStatus {
	if s == nil {
		return nil
	}
	return statuses(s.readable())
}

// readable returns the certificates that can be read, as they were at most a minute ago.
func (s *Host) readable() []certificate {
	k := &s.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.mu.at.IsZero() && time.Since(k.mu.at) < readEvery {
		return k.mu.list
	}
	k.mu.at, k.mu.list = time.Now(), nil
	for _, c := range certificates(s.cfg.Settings) {
		if c.GetError() == "" {
			c.Path = ""
			k.mu.list = append(k.mu.list, c)
		}
	}
	return k.mu.list
}

var (
	descBegin = prometheus.NewDesc("march_certificate_begin_timestamp_seconds",
		"When the certificate that ends first began, by the setting that names its file.", []string{"setting"}, nil)
	descEnd = prometheus.NewDesc("march_certificate_end_timestamp_seconds",
		"When the first certificate of a file ends, by the setting that names the file.", []string{"setting"}, nil)
)

// Describe implements prometheus.Collector: the metrics tell when certificates end.
func (s *Host) Describe(out chan<- *prometheus.Desc) {
	out <- descBegin
	out <- descEnd
}

// Collect implements prometheus.Collector.
func (s *Host) Collect(out chan<- prometheus.Metric) {
	for _, c := range s.readable() {
		out <- prometheus.MustNewConstMetric(descBegin, prometheus.GaugeValue, float64(c.begins.Unix()), c.GetSetting())
		out <- prometheus.MustNewConstMetric(descEnd, prometheus.GaugeValue,
			float64(c.GetEnds().AsTime().Unix()), c.GetSetting())
	}
}

// firstToEnd returns the certificate of a file (PEM) that ends first.
func firstToEnd(setting, path string) (first *x509.Certificate, err error) {
	content, err := smallfile.Read(setting, path, maxCertificates)
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
