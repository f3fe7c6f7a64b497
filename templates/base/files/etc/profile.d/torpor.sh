# Where `pip install` and `npm install -g` of an ordinary user put their programs. The folders are
# named even while empty, so that the shell that installs a program can also run it. They come first
# here, as users expect, and last in the machine's own PATH, so that root finds the system's first.
: "${LANG:=C.UTF-8}"
export LANG
if [ -n "${HOME-}" ] && [ "$HOME" != /root ]; then
  case "$PATH" in
    "$HOME/.local/bin:"*) ;;
    *) export PATH="$HOME/.local/bin:$HOME/.npm-global/bin:${PATH%":$HOME/.local/bin:$HOME/.npm-global/bin"}" ;;
  esac
fi
