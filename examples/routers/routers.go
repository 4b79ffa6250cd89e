// Package routers puts a Shedder into net/http, chi, echo and gin.
package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Each of them has /p/{project}/capture, limited by the project: shed has the Key
// httpshed.ByPathValue("project").

// NetHTTP is http.ServeMux.
func NetHTTP(shed *httpshed.Shedder, capture http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/p/{project}/capture", shed.Handler(capture))
	return mux
}

// Chi sets path values itself, once the route is chosen: With, and not Use.
func Chi(shed *httpshed.Shedder, capture http.Handler) http.Handler {
	r := chi.NewRouter()
	r.With(shed.Handler).Get("/p/{project}/capture", capture.ServeHTTP)
	return r
}

// Echo needs the path value set.
func Echo(shed *httpshed.Shedder, capture http.Handler) http.Handler {
	e := echo.New()
	e.GET("/p/:project/capture", echo.WrapHandler(capture), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Request().SetPathValue("project", c.Param("project"))
			return echo.WrapMiddleware(shed.Handler)(next)(c)
		}
	})
	return e
}

// Gin needs it too, and has no form for func(http.Handler) http.Handler.
func Gin(shed *httpshed.Shedder, capture http.Handler) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.GET("/p/:project/capture", func(c *gin.Context) {
		c.Request.SetPathValue("project", c.Param("project"))
		shed.Handler(capture).ServeHTTP(c.Writer, c.Request)
	})
	return g
}
