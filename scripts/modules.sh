# shellcheck shell=bash
# What the scripts know of the modules, for them to source at the root of the tree. All
# of it is read from go.work and the go.mods: a new module needs no line here.

root=github.com/ashfaqjani916/gotsem

# modules prints the folder of each module of the workspace, the root (.) first.
modules() { go work edit -json | sed -n 's/.*"DiskPath": "\(.*\)".*/\1/p' | sed 's,^\./,,' | sort; }

# path FOLDER prints the module's path.
path() { if [ "$1" = . ]; then echo "$root"; else echo "$root/$1"; fi; }

# tag FOLDER VERSION prints the module's tag: Go wants the folder in front.
tag() { if [ "$1" = . ]; then echo "$2"; else echo "$1/$2"; fi; }

# needs FOLDER prints the folders of our modules that it requires.
needs() {
	(cd "$1" && go mod edit -json) | sed -n '/"Require"/,/\]/s/.*"Path": "\(.*\)".*/\1/p' |
		sed -n "s,^$root\$,.,p; s,^$root/,,p" | sort -u
}

# released says whether a folder's module is one that users get. The others only judge
# and show it, in the tree.
released() { case $1 in verify | verify/* | examples | examples/*) return 1 ;; esac; }
