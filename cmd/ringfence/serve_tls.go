package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// tls makes the configuration of the clients' listeners; nil is plain TCP.
func (f *serveFlags) tls(log *slog.Logger) (*tls.Config, error) {
	switch {
	case f.tlsCert == "" && f.tlsKey == "" && f.clientCA == "":
		return nil, nil
	case f.tlsCert == "" || f.tlsKey == "":
		return nil, refusal{errors.New("TLS takes both --tls-cert and --tls-key")}
	}
	pair := &keyPair{cert: f.tlsCert, key: f.tlsKey, log: log}
	if err := pair.load(); err != nil {
		return nil, refusal{err}
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if f.clientCA != "" {
		pem, err := os.ReadFile(f.clientCA)
		if err != nil {
			return nil, refusal{fmt.Errorf("--tls-client-ca: %w", err)}
		}
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, refusal{fmt.Errorf("--tls-client-ca: %s holds no certificate", f.clientCA)}
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// keyPair is a certificate that is read again when its files change. A change that
// cannot be read, as half of one, leaves the one before.
type keyPair struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	looked time.Time // when the files were last looked at
	stamp  [2]time.Time
	now    *tls.Certificate
	broken string // why it is an older one than there should be, as it was logged
}

const keyPairEvery = time.Second // how often the files are looked at, at most

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) >= keyPairEvery {
		k.look()
		k.looked = time.Now()
	}
	return k.now, nil
}

// look reads what has changed. Why it cannot is told once.
func (k *keyPair) look() {
	stamp, err := k.stamps()
	changed := err == nil && stamp != k.stamp
	if changed {
		err = k.read(stamp)
	}
	switch {
	case err == nil && changed:
		k.broken = ""
		k.log.Info("the certificate has changed", "cert", k.cert, "expires", k.now.Leaf.NotAfter)
	case err == nil:
		k.broken = ""
	case err.Error() != k.broken:
		k.broken = err.Error()
		k.log.Error("the certificate cannot be read again, and clients get the one before: put the right files there", "error", err, "expires", k.now.Leaf.NotAfter)
	}
}

func (k *keyPair) load() error {
	stamp, err := k.stamps()
	if err != nil {
		return err
	}
	return k.read(stamp)
}

func (k *keyPair) read(stamp [2]time.Time) error {
	c, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", k.cert, k.key, err)
	}
	k.now, k.stamp = &c, stamp
	return nil
}

func (k *keyPair) stamps() (stamp [2]time.Time, err error) {
	for i, name := range []string{k.cert, k.key} {
		st, err := os.Stat(name)
		if err != nil {
			return stamp, fmt.Errorf("--%s: %w", [...]string{"tls-cert", "tls-key"}[i], err)
		}
		stamp[i] = st.ModTime()
	}
	return stamp, nil
}
