package server

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed web
var web embed.FS

// page is the small page at / to try captures with. It has no build step, loads
// nothing from elsewhere, and shows what it gets as text and as pictures only.
func page() http.Handler {
	root, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the name is in the line above
	}
	files := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		files.ServeHTTP(w, r)
	})
}
