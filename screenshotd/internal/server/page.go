package server

import (
	"embed"
	"io/fs"
	"net/http"
)

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

//go:embed web
var web embed.FS

// page is the page at /: the slots as they fill and empty, and a form to try captures
// with. It has no build step, loads nothing from elsewhere, and shows what it gets as text
// and as pictures only, which Trusted Types see to.
func page() http.Handler {
	root, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the name is in the line above
	}
	files := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		files.ServeHTTP(w, r)
	})
}
