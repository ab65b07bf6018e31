// The search takes a word after a hyphen for one to leave out: let people paste flags such as --batch-size
document.addEventListener('keyup', event => {
  if (event.target.matches('[data-md-component=search-query]'))
    event.target.value = event.target.value.replace(/(^|\s)-+/g, '$1')
}, true)
