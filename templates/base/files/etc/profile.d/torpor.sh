# Where `pip install` and `npm install -g` of an ordinary user put their programs. The folders are
# named even while empty, so that the shell that installs a program can also run it.
: "${LANG:=C.UTF-8}"
export LANG
if [ -n "${HOME-}" ] && [ "$HOME" != /root ]; then
  for i in "$HOME/.npm-global/bin" "$HOME/.local/bin"; do
    case ":$PATH:" in
      *":$i:"*) ;;
      *) PATH="$i:$PATH" ;;
    esac
  done
  unset i
  export PATH
fi
