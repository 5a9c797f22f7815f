package login

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
)

// attempt is a login at the issuer under way, in a cookie of the browser that began it.
type attempt struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"` // of PKCE
	To       string    `json:"t"`
	Expires  time.Time `json:"e"`
}

// oauth returns the settings of a login at the issuer.
func (h *Handler) oauth(p *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: h.cfg.ClientID, ClientSecret: h.cfg.ClientSecret, Endpoint: p.Endpoint(),
		RedirectURL: strings.TrimSuffix(h.cfg.PublicURL, "/") + "/login/callback",
		Scopes:      []string{oidc.ScopeOpenID, "profile", "groups"},
	}
}

// toIssuer sends a browser to the issuer.
func (h *Handler) toIssuer(w http.ResponseWriter, r *http.Request) {
	if h.cfg.ClientID == "" {
		http.NotFound(w, r)
		return
	}
	p, _, err := h.gate.Issuer()
	if err != nil {
		h.show(w, r, err)
		return
	}
	a := attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		To: local(r.FormValue("to")), Expires: time.Now().Add(attemptLasts)}
	if err := h.set(w, attemptCookie, a, attemptLasts); err != nil {
		h.show(w, r, err)
		return
	}
	http.Redirect(w, r, h.oauth(p).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)),
		http.StatusSeeOther)
}

// fromIssuer logs in a browser that comes back from the issuer.
func (h *Handler) fromIssuer(w http.ResponseWriter, r *http.Request) {
	if h.cfg.ClientID == "" {
		http.NotFound(w, r)
		return
	}
	var a attempt
	cookie, err := r.Cookie(attemptCookie)
	if err == nil {
		err = h.cookie.Decode(attemptCookie, cookie.Value, &a)
	}
	drop(w, attemptCookie) // it counts once
	if err != nil || !time.Now().Before(a.Expires) ||
		subtle.ConstantTimeCompare([]byte(a.State), []byte(r.FormValue("state"))) != 1 {
		h.show(w, r, allocator.Errorf(allocator.Unauthenticated,
			"this browser did not begin the login, or took longer than %v; log in again", attemptLasts))
		return
	}
	session, err := h.exchange(r.Context(), a, r.FormValue("code"))
	if err != nil {
		h.log.Warn("login at the issuer failed", "from", address(r), "error", err)
		h.show(w, r, allocator.Errorf(allocator.KindOf(err),
			"the login at the issuer failed; the console's log says why"))
		return
	}
	h.enter(w, r, session, a.To)
}

// exchange returns the session that the issuer's code is good for.
func (h *Handler) exchange(ctx context.Context, a attempt, code string) (*access.Session, error) {
	p, client, err := h.gate.Issuer()
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) error {
		return allocator.Errorf(allocator.Unauthenticated, format, args...)
	}
	ctx = oidc.ClientContext(ctx, client)
	answer, err := h.oauth(p).Exchange(ctx, code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return nil, refuse("the issuer does not take the code: %.300s", err.Error())
	}
	raw, ok := answer.Extra("id_token").(string)
	if !ok {
		return nil, refuse("the issuer gave no id_token")
	}
	nonce, id, err := h.gate.VerifyLogin(ctx, h.cfg.ClientID, raw)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(nonce), []byte(a.Nonce)) != 1 {
		return nil, refuse("the issuer's id_token is of another login")
	}
	return h.gate.NewLogin(ctx, id, answer.AccessToken), nil
}
