#!/bin/bash
# Takes the place of every engine in the tests of hostile requests: records exactly what it is given (RECORD is replaced by
# the folder for that), and does what the runner needs to go on. A real engine would reject most of these values before it
# could show them.
name=${0##*/}
if [[ $1 == version ]]; then
  if [[ $name == pulumi ]]; then echo v3.0.0; else echo '{"terraform_version": "1.9.0"}'; fi
  exit 0
fi
printf '%s\0' "$name" "$@" >>"RECORD/args"
env -0 >>"RECORD/env"
for word; do case $word in -out=*) : >"${word#-out=}" ;; esac; done
case "$name $1" in
  'pulumi config') cat >>"RECORD/stdin" ;;
  'pulumi preview') [[ $2 != --save-plan ]] || echo '{"resourcePlans": {}}' >"$3" ;;
esac
echo '{}'
