package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ringfence/ringfence/engine/client"
)

// credentials fills in who this is for a server that asks: --user, or RINGFENCE_USER,
// with a password; or a token; or nobody, whom a client certificate may name. Secrets
// come from the environment, from files and from terminals, never from the command line,
// which every process of the host can read.
func (a *app) credentials(o *client.Options) error {
	fromEnv, _ := a.env(userVar)
	token, _ := a.env(tokenVar)
	user := cmp.Or(a.client.user, fromEnv)
	file, fileIs := a.client.passwordFile, a.client.said("password-file")
	password := ""
	if file == "" {
		password, _ = a.env(passwordVar)
		fileIs = variableOf("password-file")
		if file, _ = a.env(fileIs); file != "" && password != "" {
			return usageError{fmt.Errorf("%s and %s are both set: which one?", passwordVar, fileIs)}
		}
	}
	switch {
	case user == "" && file != "":
		return usageError{fmt.Errorf("%s: whose? Give --user, or set %s", fileIs, userVar)}
	case user == "":
		o.Password = token
		return nil
	case token != "" && a.client.user == "":
		return usageError{fmt.Errorf("%s and %s are both set: who is it?", userVar, tokenVar)}
	}
	o.User, o.Password = user, password
	if file != "" {
		p, err := readSecret(file)
		if err != nil {
			return usageError{fmt.Errorf("%s: %w", fileIs, err)}
		}
		o.Password = p
	}
	if o.Password == "" {
		return usageError{fmt.Errorf("the password of user %q is missing: give --password-file, or set %s", user, passwordVar)}
	}
	return nil
}

// hasCredentials says whether the environment names somebody, which wins over a context.
func (a *app) hasCredentials() bool {
	user, _ := a.env(userVar)
	token, _ := a.env(tokenVar)
	return user != "" || token != ""
}

// maxSecret is more than any password has, in bytes.
const maxSecret = 4 << 10

// readSecret is the one line of a file.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	s, err := secretLine(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// secretLine reads a secret: one line, with or without its end, and nothing behind it.
func secretLine(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err != nil {
		return "", err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	switch {
	case len(b) == 0:
		return "", errors.New("it is empty")
	case len(b) > maxSecret:
		return "", fmt.Errorf("it has more than %d bytes", maxSecret)
	case bytes.ContainsAny(b, "\r\n\x00"):
		return "", errors.New("it has more than one line")
	}
	return string(b), nil
}

// newPassword is one that a user is to get: from a file, from the terminal, which asks
// twice and shows nothing, or else from standard input.
func (a *app) newPassword(ctx context.Context, file, user string) (string, error) {
	if file != "" {
		p, err := readSecret(file)
		if err != nil {
			return "", usageError{fmt.Errorf("--new-password-file: %w", err)}
		}
		return p, nil
	}
	if !a.typed() {
		in := newInterruptible(ctx, a.in)
		defer in.end()
		p, err := secretLine(in)
		if err != nil {
			return "", usageError{fmt.Errorf("the new password, from standard input: %w", err)}
		}
		return p, nil
	}
	var typed [2]string
	for i, ask := range []string{"New password of " + user + ": ", "The same again: "} {
		var err error
		if typed[i], err = a.typedSecret(ctx, ask); err != nil {
			return "", err
		}
	}
	if typed[0] != typed[1] {
		return "", usageError{errors.New("these were two different passwords")}
	}
	return typed[0], nil
}
